//! `sealwire top`: what all micro services on a bus are doing, live in a terminal or as JSON.
//! Never lets a text from the bus move the cursor, and never leaves the terminal other than it found it.

mod app;
mod draw;
mod json;
mod sheet;
mod tally;

use std::io::IsTerminal as _;
use std::time::Duration;

use clap::Args;
use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event};
use sealwire_survey::Survey;
use tokio::sync::mpsc;
use tokio::time::{Instant, sleep_until};

use self::app::App;
use self::sheet::{Sheet, View};
use self::tally::Tally;
use crate::exit::{Exit, Failure};
use crate::output::Output;
use crate::runtime::{Signals, block_on};
use crate::survey::SurveyArgs;
use crate::when;

/// Watch all NATS micro services: calls, errors, times, and what services of ours refuse
///
/// Asks `$SRV.STATS` of every micro service (ADR-32), whoever made it, again and again. Services whose keys are known must have signed their
/// answers. Keys: 1 to 4 or Tab choose between services, replicas, methods and refusals; `s` and `r` sort; `/` filters by service or
/// method, `a` by agent; `q` ends it. See docs/observability.md.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire top --url nats://127.0.0.1:4222
  sealwire top --login sealwire-dev/tools.nats.json \\
      --creds sealwire-dev/planner.creds.json
  sealwire top --url nats://127.0.0.1:4222 --once
  sealwire top --url nats://127.0.0.1:4222 --json | jq '.services[].name'")]
pub(crate) struct Top {
    #[command(flatten)]
    survey: SurveyArgs,
    /// How often the services are asked
    #[arg(long, value_name = "TIME", default_value = "2s", value_parser = when::interval)]
    every: Duration,
    /// Ask once, print what was answered, and end; without it, `--json` prints one line for each round
    #[arg(long)]
    once: bool,
}

impl Top {
    pub(crate) fn run(self, out: &Output) -> Result<Exit, Failure> {
        let draws = !self.once && !out.is_json();
        if draws && !(std::io::stdin().is_terminal() && std::io::stdout().is_terminal()) {
            let failure = Failure::new(Exit::Usage, "`sealwire top` draws on a terminal, and this is none");
            return Err(failure.help("add --once for one table, or --json for lines of JSON"));
        }
        let signals = Signals::listen(Some(ENDING))?;
        block_on(async {
            let opened = signals.unless_stopped(self.survey.open("top", self.every)).await;
            let Some(survey) = opened.transpose()? else { return Ok(Exit::Ok) };
            match draws {
                true => self.watch(&survey, &signals).await,
                false => self.print(&survey, &signals, out).await,
            }
        })?
    }

    /// Prints what each round has found, or only the first.
    async fn print(&self, survey: &Survey, signals: &Signals, out: &Output) -> Result<Exit, Failure> {
        let mut tally = Tally::default();
        loop {
            let begun = Instant::now();
            let Some(asked) = signals.unless_stopped(survey.round()).await else { return Ok(Exit::Ok) };
            asked.map_err(|error| self.survey.not_asked(&error))?;
            tally.add(survey.look());
            out.result(&json::object(&tally), || {
                let sheets = View::ALL.map(|view| Sheet::new(view, &tally));
                let texts: Vec<_> = sheets.iter().filter(|sheet| !sheet.rows.is_empty()).map(Sheet::text).collect();
                if texts.is_empty() { "no service has answered".to_owned() } else { texts.join("\n") }
            })?;
            if self.once || signals.unless_stopped(sleep_until(begun + self.every)).await.is_none() {
                return Ok(Exit::Ok);
            }
        }
    }

    /// Draws until somebody has seen enough.
    async fn watch(&self, survey: &Survey, signals: &Signals) -> Result<Exit, Failure> {
        let mut terminal = ratatui::try_init().map_err(|error| Failure::output(&error))?;
        let ended = self.draw(&mut terminal, survey, signals).await;
        // There is nowhere left to say that the terminal is gone.
        let _ = ratatui::try_restore();
        ended
    }

    async fn draw(&self, terminal: &mut DefaultTerminal, survey: &Survey, signals: &Signals) -> Result<Exit, Failure> {
        let (mut app, mut keys) = (App::default(), pressed());
        let (told, mut rounds) = mpsc::channel(1);
        let (asking, every) = (survey.clone(), self.every);
        let asks = tokio::spawn(async move {
            loop {
                let begun = Instant::now();
                let asked = asking.round().await;
                if told.send(asked).await.is_err() {
                    return;
                }
                sleep_until(begun + every).await;
            }
        });
        let ended = loop {
            if let Err(error) = terminal.draw(|frame| app.draw(frame)) {
                break Err(Failure::output(&error));
            }
            tokio::select! {
                () = signals.stop() => break Ok(Exit::Ok),
                asked = rounds.recv() => match asked {
                    Some(Err(error @ sealwire_survey::NotAsked::Forbidden(_))) => break Err(self.survey.not_asked(&error)),
                    // It says itself whether there is a connection.
                    Some(_) => app.take(survey.look()),
                    None => break Ok(Exit::Ok),
                },
                event = keys.recv() => match event {
                    Some(Event::Key(key)) if app.press(key).is_break() => break Ok(Exit::Ok),
                    Some(_) => {}
                    // The terminal is gone.
                    None => break Ok(Exit::Ok),
                },
            }
        };
        asks.abort();
        ended
    }
}

/// How long ending may take.
const ENDING: Duration = Duration::from_secs(5);
/// Keys that wait to be obeyed. Who holds one down waits for the screen.
const KEYS: usize = 64;

/// What is typed, and changes of the terminal's size.
fn pressed() -> mpsc::Receiver<Event> {
    let (told, keys) = mpsc::channel(KEYS);
    // It ends with the process: nothing can wake it before.
    std::thread::spawn(move || {
        while let Ok(event) = event::read()
            && told.blocking_send(event).is_ok()
        {}
    });
    keys
}
