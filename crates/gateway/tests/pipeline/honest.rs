//! What a dialect may do, which compiles.

use bytes::Bytes;

use crate::http::pipeline::admission::{Admitted, AdmittedMessage, AdmittedSocket, ServiceSet};
use crate::http::refusal::Refusal;

async fn call(admitted: Admitted, text: Bytes) -> Result<(), Refusal> {
    let streaming = admitted.admit_stream()?;
    drop(admitted);
    let (request, _) = streaming.request().await.map_err(|_| Refusal::away())?;
    let _ = request.relay().exchange(text).await;
    Ok(())
}

fn message(message: &AdmittedMessage<ServiceSet>) -> Result<(), Refusal> {
    let _ = message.admit()?.caller();
    Ok(())
}

async fn socket(socket: &AdmittedSocket) -> Result<(), Refusal> {
    let _ = socket.admit()?.request().await;
    Ok(())
}
