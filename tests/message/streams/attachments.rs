//! Attachments of a caller that does not answer, or answers late.

use sealwire::serve::Attachment;

use super::*;

/// SPEC.md §25.6: each part of an attachment is asked for up to three times, and the first answer to any of the questions counts.
#[tokio::test(start_paused = true)]
async fn a_part_of_an_attachment_is_asked_for_again_and_given_up() {
    let store = |ctx: Ctx, (document,): (Attachment,)| async move {
        let document = ctx.attachment(&document).await?;
        Ok::<_, RpcError>(String::from_utf8_lossy(&document).into_owned())
    };
    let desk = Arc::new(Desk::open(Router::new(()).method("desk/store", store)));
    let params = json!([{ "sha256": digest(b"abc"), "size": 3, "type": "text/plain" }]);
    let begin = || Caller::call(&desk, desk.agent("ann", &["worker"]), &call("desk/store", &params.to_string()), 8);

    let (mut caller, started) = (begin(), tokio::time::Instant::now());
    let (_, frames) = caller.finished().await;
    assert_eq!(started.elapsed().as_secs(), 45);
    let asked: Vec<Value> = frames
        .iter()
        .filter(|frame| frame.kind == FrameKind::Ask)
        .map(|frame| serde_json::from_slice(&frame.payload).unwrap())
        .collect();
    assert_eq!(asked.len(), 3);
    for question in &asked {
        assert_eq!(question["method"], "rpc.attachment");
        assert_eq!(question["params"], json!({ "sha256": digest(b"abc"), "offset": 0, "length": 3 }));
    }
    assert_eq!(end(&frames)["error"]["code"], -32004);

    // The answer to the first question comes after the second question was sent.
    let mut caller = begin();
    tokio::time::sleep(Duration::from_secs(6)).await;
    let asked = caller.out.frames.lock().unwrap().iter().find(|frame| frame.kind() == FrameKind::Ask).unwrap().clone();
    let question: Value = serde_json::from_slice(asked.payload()).unwrap();
    let headers = String::from_utf8(asked.headers().as_bytes().to_vec()).unwrap();
    let proof = headers.lines().find_map(|line| line.strip_prefix("Authentication-Info: NatsRpc ")).unwrap();
    let answer = json!({ "jsonrpc": "2.0", "result": "YWJj", "id": question["id"] }).to_string();
    caller.control_with(ControlOp::Answer { ask: digest(proof.as_bytes()) }, answer.as_bytes()).await;
    assert_eq!(end(&caller.finished().await.1)["result"], "abc");
}
