//! Files that contain decisions or secrets: who could have written them, and who else can read them.
//! Knows nothing of their contents.

mod error;
#[cfg(unix)]
mod group;
mod open;
mod replace;
mod secret;
#[cfg(feature = "service")]
mod settling;
mod trust;
#[cfg_attr(not(unix), path = "files/names.rs")]
mod walk;

pub use error::SecretFileError;
pub(crate) use error::is_missing;
pub use replace::{locate_file, write_public};
pub use secret::{check_folder, open_public, read_public, read_secret, write_secret};
pub(crate) use secret::{read_open, read_trusted};
#[cfg(feature = "service")]
pub(crate) use settling::Settling;
pub(crate) use trust::Content;
pub use trust::FileTrust;
pub(crate) use walk::{Entry, Folder};

#[cfg(all(test, unix))]
mod tests;
