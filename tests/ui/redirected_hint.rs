//! Even a hint goes only to a subject that passed the reply rule.

use sealwire::internal::wire::{ReplyTo, UnsignedHint};
use sealwire::serve::Sealed;

fn hint_to_anyone() -> Sealed {
    UnsignedHint::Overloaded.to(ReplyTo("$JS.API.STREAM.DELETE.orders".into()))
}

fn main() {}
