//! What a server tells whoever has started it.

use std::fmt::Display;

/// Prints where it listens.
pub fn print_address(address: impl Display) {
    println!("{address}");
}
