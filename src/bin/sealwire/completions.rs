//! Completion scripts for shells.
//! Never installs anything: the script is printed.

use clap::{Args, CommandFactory as _};
use clap_complete::Shell;

use crate::cli::Cli;
use crate::exit::{Exit, Failure};
use crate::output::Output;

/// Print the completion script of a shell.
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire completions bash > /etc/bash_completion.d/sealwire
  sealwire completions zsh  > ~/.zfunc/_sealwire
  sealwire completions fish > ~/.config/fish/completions/sealwire.fish")]
pub(crate) struct Completions {
    /// The shell
    #[arg(value_enum)]
    shell: Shell,
}

impl Completions {
    pub(crate) fn run(&self, out: &Output) -> Result<Exit, Failure> {
        let mut script = Vec::new();
        clap_complete::generate(self.shell, &mut Cli::command(), "sealwire", &mut script);
        out.print(&String::from_utf8_lossy(&script))?;
        Ok(Exit::Ok)
    }
}
