//! Tokens that are given, read from a file that changes, or printed by a program.
//! Never reads without a bound, and never shows what was read.

use std::ffi::OsString;
use std::fmt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use tokio::io::AsyncReadExt as _;
use tokio::process::Command;
use zeroize::Zeroizing;

use crate::files::{Content, FileTrust, decode_text, is_missing};

use super::{FetchedToken, MAX_FETCHED, TokenFault, TokenSource};

/// A token that never changes. Calls fail once it has expired.
pub struct StaticToken(Zeroizing<String>);

impl StaticToken {
    /// A source of this token.
    #[must_use]
    pub fn new(token: impl Into<String>) -> Self {
        Self(Zeroizing::new(token.into()))
    }
}

impl TokenSource for StaticToken {
    fn fetch(&self) -> FetchedToken<'_> {
        Box::pin(async { Ok(self.0.to_string()) })
    }
}

impl fmt::Debug for StaticToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StaticToken(..)")
    }
}

/// A token in a file that somebody else renews. While calls are made, it is read again at most once a second, so that a
/// new token is used soon after it was written, and revoking the old one does no harm.
#[derive(Debug)]
pub struct FileToken(PathBuf);

impl FileToken {
    /// The token in this file: at most 8 KiB of text, white space around it allowed. Only its owner may be able to read it.
    #[must_use]
    pub fn new(path: impl Into<PathBuf>) -> Self {
        Self(path.into())
    }
}

impl TokenSource for FileToken {
    fn fetch(&self) -> FetchedToken<'_> {
        Box::pin(async {
            let fault = |error| TokenFault::File { path: self.0.clone(), error };
            let path = self.0.clone();
            let opened = tokio::task::spawn_blocking(move || FileTrust::default().open(&path, Content::Secret)).await;
            let file = opened
                .map_err(|panic| fault(std::io::Error::other(panic)))?
                .map_err(|error| if error.is_missing() { TokenFault::Missing } else { TokenFault::Secret(error) })?;
            read(tokio::fs::File::from_std(file)).await.map_err(|error| error.unwrap_or_else(fault))
        })
    }

    fn recheck(&self) -> Option<Duration> {
        Some(Duration::from_secs(1))
    }
}

/// A program that prints a token. It is run when the token in use is about to expire.
pub struct CommandToken {
    program: OsString,
    arguments: Vec<String>,
    folder: PathBuf,
}

impl CommandToken {
    /// Runs `program` with `arguments` in `folder`, without a shell. It gets no input; its standard output is the
    /// token, its standard error is ours. It is killed after 10 s.
    ///
    /// A relative path with a slash starts from `folder`; a bare name is looked up in `PATH`. An empty `folder` means
    /// the working directory.
    #[must_use]
    pub fn new(program: &str, arguments: impl IntoIterator<Item = String>, folder: &Path) -> Self {
        // A relative path to the program would be resolved from the folder that the program starts in.
        let folder = if folder.as_os_str().is_empty() { Path::new(".") } else { folder };
        let folder = std::path::absolute(folder).unwrap_or_else(|_| folder.to_owned());
        let path = Path::new(program);
        let program = if path.components().count() > 1 { folder.join(path).into_os_string() } else { program.into() };
        Self { program, arguments: arguments.into_iter().collect(), folder }
    }

    fn shown(&self) -> String {
        crate::name::shown(&self.program.to_string_lossy())
    }
}

impl TokenSource for CommandToken {
    fn fetch(&self) -> FetchedToken<'_> {
        Box::pin(async {
            let fault = |error: std::io::Error| match is_missing(&error) {
                true => TokenFault::NoProgram,
                false => TokenFault::Run { program: self.shown(), error },
            };
            let mut command = Command::new(&self.program);
            command.args(&self.arguments).stdin(Stdio::null()).stdout(Stdio::piped()).kill_on_drop(true);
            command.current_dir(&self.folder);
            let mut child = command.spawn().map_err(fault)?;
            let printed = match child.stdout.take() {
                Some(output) => read(output).await.map_err(|error| error.unwrap_or_else(fault))?,
                None => String::new(),
            };
            let printed = Zeroizing::new(printed);
            let status = child.wait().await.map_err(fault)?;
            if !status.success() {
                return Err(TokenFault::Failed { program: self.shown(), status });
            }
            Ok(printed.to_string())
        })
    }
}

/// The arguments may be secrets.
impl fmt::Debug for CommandToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("CommandToken").field("program", &self.program).finish_non_exhaustive()
    }
}

/// Either our own verdict on what was read, or what the operating system says.
enum Unread {
    Ours(TokenFault),
    System(std::io::Error),
}

impl Unread {
    fn unwrap_or_else(self, fault: impl FnOnce(std::io::Error) -> TokenFault) -> TokenFault {
        match self {
            Self::Ours(ours) => ours,
            Self::System(error) => fault(error),
        }
    }
}

async fn read(from: impl tokio::io::AsyncRead + Unpin) -> Result<String, Unread> {
    let bound = u64::try_from(MAX_FETCHED).unwrap_or(u64::MAX).saturating_add(1);
    // One allocation, so that no copy of the token is left behind by a growing buffer.
    let mut bytes = Zeroizing::new(Vec::with_capacity(MAX_FETCHED + 1024));
    from.take(bound).read_to_end(&mut bytes).await.map_err(Unread::System)?;
    if bytes.len() > MAX_FETCHED {
        return Err(Unread::Ours(TokenFault::TooLong));
    }
    // Windows' shells mark what they redirect.
    decode_text(bytes).map(|text| text.to_string()).map_err(|fault| Unread::Ours(TokenFault::NotText(fault)))
}
