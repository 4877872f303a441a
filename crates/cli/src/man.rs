//! `sealwire man`: writes a manual page for each command, generated from its help.
//! Never installs anything: it writes only into the given folder, and makes no other file readable.

use std::fs::File;
use std::path::{Path, PathBuf};

use clap::{Args, Command};
use clap_mangen::Man;
use serde_json::json;

use crate::exit::{Exit, Failure};
use crate::files;
use crate::output::Output;
use crate::process;

/// Write manual pages, one for each command, into a folder
#[derive(Args)]
#[command(after_help = "\
Examples:
  sealwire man ~/.local/share/man/man1
  man -l sealwire-policy-diff.1")]
pub(crate) struct Manual {
    /// The folder; created if there is none
    #[arg(value_name = "FOLDER")]
    folder: PathBuf,
}

impl Manual {
    /// Writes the pages of this command and those below it.
    pub(crate) fn run(&self, command: Command, out: &Output) -> Result<Exit, Failure> {
        let made: Vec<&Path> = self.folder.ancestors().take_while(|folder| is_missing(folder)).collect();
        files::make_folder(&self.folder)?;
        made.into_iter().try_for_each(open_up).map_err(|error| self.unwritable(&error))?;
        let mut command = command.disable_help_subcommand(true);
        command.build();
        let mut pages = Vec::new();
        self.write(&command, &mut pages)?;
        let folder: &Path = &self.folder;
        out.result(&json!({ "folder": files::shown(folder), "pages": pages }), || {
            format!("wrote {} pages into {}", pages.len(), folder.display())
        })?;
        Ok(Exit::Ok)
    }

    fn write(&self, command: &Command, pages: &mut Vec<String>) -> Result<(), Failure> {
        let man = Man::new(command.clone());
        let (name, mut page) = (man.get_filename(), Vec::new());
        man.render(&mut page).map_err(|error| self.unwritable(&error))?;
        let path = self.folder.join(&name);
        files::write_public(&path, &String::from_utf8_lossy(&page))?;
        open_up(&path).map_err(|error| self.unwritable(&error))?;
        pages.push(name);
        command.get_subcommands().try_for_each(|command| self.write(command, pages))
    }

    fn unwritable(&self, error: &std::io::Error) -> Failure {
        Failure::input(format!("`{}`: {error}", self.folder.display()))
    }
}

fn is_missing(folder: &Path) -> bool {
    !folder.as_os_str().is_empty() && !folder.exists()
}

fn open_up(path: &Path) -> std::io::Result<()> {
    process::open_up(&File::open(path)?)
}
