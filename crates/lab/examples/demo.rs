//! `cargo demo`: the scenario of `sealwire demo`, for whoever has just cloned the project. Of the command, only what it needs is compiled.

use std::error::Error;
use std::io::{self, Write as _};
use std::process::ExitCode;

use sealwire_lab::audience::Audience;
use sealwire_lab::demo::{Stage, perform};
use sealwire_nats_server::{Environment, find_in};

struct Terminal;

impl Audience for Terminal {
    fn note(&self, text: &str) {
        // There is nobody left to tell.
        let _ = writeln!(io::stderr(), "{text}");
    }

    fn line(&self, text: &str) -> io::Result<()> {
        writeln!(io::stdout(), "{text}")
    }
}

#[tokio::main]
async fn main() -> Result<ExitCode, Box<dyn Error>> {
    let server = find_in(&Environment::of_process(), &mut |note| Terminal.note(&format!("note: {note}")))?;
    let stage = Stage::build(&server, &Terminal)?;
    let transcript = tokio::select! {
        transcript = perform(&stage, &Terminal) => transcript?,
        // Its broker and its folder go, too.
        _ = tokio::signal::ctrl_c() => return Ok(ExitCode::FAILURE),
    };
    Terminal.line(&format!("\n{}", transcript.summary()))?;
    Ok(ExitCode::from(u8::from(transcript.as_expected() < transcript.lines().len())))
}
