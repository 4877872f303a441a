//! A value that proves something exists once. With a copy, one check would serve for two messages.

use sealwire::internal::auth::{Authentic, Verified};
use sealwire::serve::{Call, Permit, Permitted, Sealed};
use sealwire::internal::wire::{Envelope, ReplyTo};

fn copy(envelope: Envelope, authentic: Authentic, verified: Verified, call: Call) {
    drop(envelope.clone());
    drop(authentic.clone());
    drop(verified.clone());
    drop(call.clone());
}

fn copy_more(permit: Permit, permitted: Permitted, sealed: Sealed, reply: ReplyTo) {
    drop(permit.clone());
    drop(permitted.clone());
    drop(sealed.clone());
    drop(reply.clone());
}

fn main() {}
