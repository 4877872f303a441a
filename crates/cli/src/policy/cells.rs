//! A cell of the matrix of callers and methods, for people.
//! Never says more than the engine did.

use std::fmt::Write as _;

use sealwire::internal::policy::AccessCell;

/// A line with what callers can do with a method, and below it the rules that say so.
pub(super) fn cell_text(heading: &str, cell: &AccessCell) -> String {
    let mut text = format!("{:<11}  {heading}\n", cell.access);
    for rule in &cell.rules {
        // Writing to a string cannot fail.
        let _ = writeln!(text, "    {rule}");
    }
    text
}
