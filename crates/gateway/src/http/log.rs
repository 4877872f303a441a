//! The log line of a call: on whose behalf it was made, to which service, and under which ids.
//! Never the text of a message.

#[doc(hidden)]
#[macro_export]
/// Logs what has become of a call, in further fields.
macro_rules! log_call {
    ($admitted:expr, $message_id:expr, $($field:tt)+) => {{
        let (admitted, principal) = (&$admitted, $admitted.principal());
        tracing::info!(
            target: "sealwire::gateway",
            caller = principal.as_str(),
            peer = principal.peer(),
            service = %admitted.expose().service,
            trace_id = principal.trace_id(),
            message_id = $message_id.get(),
            $($field)+
        );
    }};
}

pub(super) use log_call;
