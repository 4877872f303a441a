//! Even a hint goes only to a subject that the reply rule let pass.

use sealwire::wire::{Hint, ReplyTo, Sealed};

fn hint_to_anyone() -> Sealed {
    Hint::Overloaded.to(ReplyTo("$JS.API.STREAM.DELETE.orders".into()))
}

fn main() {}
