//! Which credentials a server is shown, and for whom. Commands are tested with `sealwire` itself, which is their guard.

use sealwire::internal::files::write_secret;
use sealwire::{Caller, Name};
use sealwire_backend::web::{Request, Web, WebError};
use serde_json::{Value, json};

use super::server::{Server, answer, config, web, within};

fn caller(agent: &str, subject: &str) -> Caller {
    let mut caller = Caller::new(agent.parse::<Name>().unwrap(), []);
    subject.clone_into(&mut caller.subject);
    caller.delegated = true;
    caller
}

#[tokio::test]
async fn a_file_is_shown_and_one_that_was_exchanged_is_shown_at_once_when_the_server_refuses() {
    let server = Server::start(|n| Some((answer(if n == 2 || n >= 4 { "401 No" } else { "200 OK" }, ""), true))).await;
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("token");
    write_secret(&file, "one\n", false).unwrap();
    let web = web(&server.url, json!({ "credential": [{ "scheme": "Bearer", "file": file }] }));
    let ask = async || within(web.send(&Request::post("{}"), Some(&caller("a", "s")))).await;
    let shown = |n: usize| {
        let request = server.requests.lock().unwrap()[n - 1].to_lowercase();
        request.lines().find_map(|line| line.strip_prefix("authorization: ").map(str::to_owned))
    };
    assert_eq!(ask().await.unwrap().status(), 200);
    assert_eq!(shown(1).as_deref(), Some("bearer one"));
    write_secret(&file, "two", true).unwrap();
    // Refused (2), and repeated with the new one (3).
    assert_eq!(ask().await.unwrap().status(), 200);
    assert_eq!(shown(3).as_deref(), Some("bearer two"));
    // The same one again would be refused again.
    assert_eq!(ask().await.unwrap().status(), 401);
    assert_eq!(server.requests(), 4);
    assert!(!format!("{web:?}").contains("two"));
}

#[tokio::test]
async fn each_caller_has_its_own_and_nobody_anothers() {
    let server = Server::start(|_| Some((answer("200 OK", ""), true))).await;
    let folder = tempfile::tempdir().unwrap();
    let tokens = folder.path().join("tokens");
    std::fs::create_dir(&tokens).unwrap();
    write_secret(&folder.path().join("elsewhere"), "root's", false).unwrap();
    write_secret(&tokens.join("alice%2Fops"), "of alice", false).unwrap();
    write_secret(&tokens.join("bob"), "of bob\nX-Admin: 1", false).unwrap();
    let web = web(
        &server.url,
        json!({
            "credential": [{ "header": "X-Api-Key", "folder": tokens, "owner": "subject" }],
            "headers": { "X-Api-Key": "of nobody" },
        }),
    );
    let ask = async |subject: &str| within(web.send(&Request::post("{}"), Some(&caller("a", subject)))).await;
    ask("alice/ops").await.unwrap();
    assert!(server.requests.lock().unwrap()[0].contains("x-api-key: of alice\r\n"));
    for nobody in ["../elsewhere", "carol", "bob", "", "."] {
        let error = ask(nobody).await.unwrap_err();
        assert!(matches!(&error, WebError::Credentials(why) if !why.contains("of bob")), "{error}");
    }
    // An agent of that name is somebody else.
    let own = Caller::new("bert".parse::<Name>().unwrap(), []);
    write_secret(&tokens.join("bert"), "of bert", false).unwrap();
    let error = within(web.send(&Request::post("{}"), Some(&own))).await.unwrap_err();
    assert!(matches!(&error, WebError::Credentials(why) if why.contains("in the agent's own name")), "{error}");
    // A request of the service itself has no caller.
    drop(within(web.send(&Request::post("{}"), None)).await.unwrap());
    assert!(server.requests.lock().unwrap()[1].contains("x-api-key: of nobody\r\n"));
    assert_eq!(server.requests(), 2);
}

#[test]
fn credentials_with_a_mistake_are_refused_with_what_to_do() {
    let folder = tempfile::tempdir().unwrap();
    let (file, open) = (folder.path().join("token"), folder.path().join("open"));
    write_secret(&file, "x", false).unwrap();
    std::fs::write(&open, "x").unwrap();
    let wrong =
        |credential: Value| Web::new(&config("https://a.example/", json!({ "credential": credential }))).unwrap_err();
    for (credential, said) in [
        (json!([{}]), "exactly one of"),
        (json!([{ "file": file, "command": ["x"] }]), "exactly one of"),
        (json!([{ "file": file, "owner": "agent" }]), "`folder` or a `command`"),
        (json!([{ "folder": file }]), "owner = \"agent\""),
        (json!([{ "file": file, "keep_s": 5 }]), "`keep_s`"),
        (json!([{ "file": file, "header": "Host" }]), "belongs to the connection"),
        (json!([{ "file": file, "header": "X Y" }]), "not a header name"),
        (json!([{ "file": file, "scheme": "" }]), "a word such as"),
        (json!([{ "file": file }, { "command": ["x"] }]), "two credentials"),
        (json!([{ "file": open }]), "chmod 600"),
        (json!([{ "file": folder.path().join("none") }]), "none"),
    ] {
        let error = wrong(credential);
        assert!(error.contains(said), "{said}: {error}");
    }
    for url in [json!({ "headers": { "Transfer-Encoding": "chunked" } }), json!({ "headers": { "X": "a\r\nY: b" } })] {
        assert!(Web::new(&config("http://127.0.0.1:1/", url)).is_err());
    }
}
