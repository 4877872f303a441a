//! `sealwire records check`: whether the lines of each session are all there, and unchanged.
//! Never says that a record is complete: whoever can write its files can also write them anew.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::PathBuf;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use clap::Args;
use sealwire::internal::record::{FIRST, Head, Kind, read_head};
use serde::{Deserialize, Serialize};
use sha2::{Digest as _, Sha256};

use super::reader::{FOLDER, Line, Reader};
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Check that no line of a record is missing or changed
///
/// The lines of each session must be numbered without gaps, and each must carry the digest of the one before. A line that a killed
/// service left unfinished, a session without an end, and lines that the service says it lost are listed. Exits with 14 if a line is
/// missing, changed or unreadable.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire records check
  sealwire records check /var/lib/bank/records --json")]
pub(crate) struct Check {
    /// The folder of a record, or files of it
    #[arg(value_name = "PATH", default_value = FOLDER)]
    paths: Vec<PathBuf>,
}

#[derive(Debug, Default, Serialize)]
struct Checked {
    lines: u64,
    sessions: Vec<Session>,
    /// Lines that a killed service left unfinished.
    torn: Vec<String>,
    /// What is missing or changed.
    broken: Vec<String>,
}

#[derive(Debug, Serialize)]
struct Session {
    session: String,
    first: u64,
    last: u64,
    lost: u64,
    /// Whether its last line says so.
    is_ended: bool,
    #[serde(skip)]
    hash: String,
}

/// What a session says of the one before.
#[derive(Debug, Deserialize)]
struct Start {
    prior: Option<Prior>,
}

#[derive(Debug, Deserialize)]
struct Prior {
    session: String,
    seq: u64,
    hash: String,
}

#[derive(Debug, Deserialize)]
struct Lost {
    lines: u64,
}

/// The most findings that are listed, and the most sessions.
const LISTED: usize = 1_000;
const SESSIONS: usize = 100_000;

impl Check {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let working = out.working("checking the record");
        let (mut checked, mut sessions, mut priors) = (Checked::default(), BTreeMap::new(), Vec::new());
        Reader::new(&self.paths, false).pass(|line| {
            checked.add(line, &mut sessions, &mut priors);
            Ok(())
        })?;
        for (place, prior) in priors {
            checked.compare(&place, &prior, &sessions);
        }
        checked.sessions = sessions.into_values().collect();
        drop(working);
        out.verdict(&checked, || checked.to_text())?;
        Ok(if checked.broken.is_empty() { Exit::Ok } else { Exit::RecordBroken })
    }
}

impl Checked {
    fn add(&mut self, line: &Line<'_>, sessions: &mut BTreeMap<String, Session>, priors: &mut Vec<(String, Prior)>) {
        if !line.is_whole {
            self.torn.push(line.place());
            return;
        }
        let head = match read_head(line.text) {
            Ok(head) => head,
            Err(error) => return self.broken(format!("{}: not a line of a record: {error}", line.place())),
        };
        self.lines += 1;
        let hash = URL_SAFE_NO_PAD.encode(Sha256::digest(line.text));
        if let Some(known) = sessions.get_mut(&head.session) {
            if head.seq != known.last + 1 {
                let after = known.last;
                self.broken(format!("{}: number {} after {after} of session {}", line.place(), head.seq, head.session));
            } else if head.prev != known.hash {
                self.broken(format!("{}: the line before it has another digest", line.place()));
            }
        } else {
            if head.seq == 1 && head.prev != FIRST {
                self.broken(format!("{}: the first line has one before it", line.place()));
            }
            if sessions.len() >= SESSIONS {
                return self.broken(format!("{}: more than {SESSIONS} sessions", line.place()));
            }
        }
        let Head { session, seq, kind, .. } = head;
        let known = sessions.entry(session.clone()).or_insert_with(|| Session {
            session,
            first: seq,
            last: seq,
            lost: 0,
            is_ended: false,
            hash: String::new(),
        });
        (known.last, known.hash, known.is_ended) = (seq, hash, kind == Kind::Stop);
        match kind {
            Kind::Start => {
                if let Ok(Start { prior: Some(prior) }) = serde_json::from_slice(line.text) {
                    priors.push((line.place(), prior));
                }
            }
            Kind::Lost => {
                if let Ok(Lost { lines }) = serde_json::from_slice(line.text) {
                    known.lost = known.lost.saturating_add(lines);
                }
            }
            _ => {}
        }
    }

    /// Whether a session still has the line that the next one saw as its last.
    fn compare(&mut self, place: &str, prior: &Prior, sessions: &BTreeMap<String, Session>) {
        // It may have been deleted as a whole, as configured.
        let Some(session) = sessions.get(&prior.session) else { return };
        if session.last < prior.seq {
            let (last, then) = (session.last, prior.seq);
            self.broken(format!(
                "{place}: session {} ends at {last}, and had {then} lines when this one began",
                prior.session
            ));
        } else if session.last == prior.seq && session.hash != prior.hash {
            self.broken(format!("{place}: the last line of session {} was another when this one began", prior.session));
        }
    }

    fn broken(&mut self, what: String) {
        if self.broken.len() < LISTED {
            self.broken.push(what);
        }
    }

    fn to_text(&self) -> String {
        let mut text = String::new();
        // Writing to a string cannot fail.
        for session in &self.sessions {
            let Session { session, first, last, lost, is_ended, .. } = session;
            let _ = write!(text, "session {session}: lines {first} to {last}");
            if *first > 1 {
                let _ = write!(text, "; the lines before are not in these files");
            }
            if *lost > 0 {
                let _ = write!(text, "; {lost} lines were lost");
            }
            text.push_str(if *is_ended { "\n" } else { "; it runs, or ended without notice\n" });
        }
        for place in &self.torn {
            let _ = writeln!(text, "{place}: ends within a line: it is being written, or its service was killed");
        }
        for what in &self.broken {
            let _ = writeln!(text, "{what}");
        }
        let (lines, sessions) = (self.lines, self.sessions.len());
        let _ = match self.broken.len() {
            0 => write!(text, "{lines} lines in {sessions} sessions: none is missing or changed"),
            broken => write!(text, "{lines} lines in {sessions} sessions: {broken} faults"),
        };
        text
    }
}
