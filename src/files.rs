//! Files that contain decisions or secrets: who could have written them, and who else can read them.
//! Knows nothing of their contents.

#[cfg(feature = "service")]
mod access;
mod error;
#[cfg(feature = "service")]
mod fingerprint;
#[cfg(unix)]
mod group;
mod open;
#[cfg(unix)]
mod readers;
mod replace;
mod secret;
#[cfg(feature = "service")]
mod settling;
mod text;
mod trust;
#[cfg_attr(not(unix), path = "files/names.rs")]
mod walk;
#[cfg(feature = "service")]
mod watch;

#[cfg(feature = "service")]
pub(crate) use access::may_write;
pub use error::SecretFileError;
pub(crate) use error::is_missing;
pub use replace::{locate_file, write_public};
pub use secret::{check_folder, open_public, read_public, read_secret, write_secret};
pub(crate) use secret::{read_open, read_trusted};
#[cfg(feature = "service")]
pub(crate) use settling::Settling;
pub use text::{TextFault, decode_text};
pub(crate) use trust::Content;
pub use trust::FileTrust;
pub(crate) use walk::{Entry, Folder};
#[cfg(feature = "service")]
pub use watch::{Polled, Standing, Watch, follow};

#[cfg(all(test, unix))]
mod tests;
