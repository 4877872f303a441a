//! Who watches a demonstration.
//! Never decides what is worth showing.

use std::io;

/// Takes what happens, as it happens.
pub trait Audience {
    /// A remark about the stage.
    fn note(&self, text: &str);

    /// A line of the scenario.
    ///
    /// # Errors
    /// That of the output: the scenario then ends.
    fn line(&self, text: &str) -> io::Result<()>;
}
