//! The `sealwire` command.

fn main() {}
