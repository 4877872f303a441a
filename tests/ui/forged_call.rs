//! A call comes from a verified message, and from nothing else.

use std::sync::Arc;

use sealwire::serve::{Call, Message};

fn open_the_vault(message: Arc<Message>) -> Call {
    Call { message, method: "vault/open".into(), params: None, id: None }
}

fn main() {}
