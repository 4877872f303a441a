//! The page on which people approve calls, in a real browser: served by another web server than the gateway, and by the gateway, which
//! may be one that changes what it passes on.

use std::path::Path;
use std::sync::{Arc, Mutex, PoisonError};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use sealwire::internal::auth::Confirmation;
use sealwire::internal::wire::KeyRequest;
use sealwire_gateway::http::APPROVALS_PAGE;
use sealwire_testkit::python::python;
use sealwire_testkit::{root, within};
use serde_json::{Value, json};
use sha2::{Digest as _, Sha256};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

use super::super::looked_at::{Browser, chromium};
use super::super::wire::Wire;
use super::super::{FAST, Gateway};
use super::{Desk, LONG};

/// A web server that answers each request with what `respond` makes of it.
async fn serve<F>(respond: impl Fn(String) -> F + Clone + Send + 'static) -> (String, JoinSet<()>)
where
    F: Future<Output = Vec<u8>> + Send,
{
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let origin = format!("http://{}", listener.local_addr().unwrap());
    let mut serving = JoinSet::new();
    serving.spawn(async move {
        let mut all = JoinSet::new();
        while let Ok((mut socket, _)) = listener.accept().await {
            let respond = respond.clone();
            all.spawn(async move {
                let (mut read, mut some) = (Vec::new(), [0; 16 << 10]);
                loop {
                    let text = String::from_utf8_lossy(&read).into_owned();
                    if let Some((head, body)) = text.split_once("\r\n\r\n") {
                        let mut lengths = head.lines().filter_map(|line| {
                            line.to_ascii_lowercase().strip_prefix("content-length: ")?.parse().ok()
                        });
                        if body.len() >= lengths.next().unwrap_or(0_usize) {
                            drop(socket.write_all(&respond(text).await).await);
                            return;
                        }
                    }
                    match socket.read(&mut some).await {
                        Ok(count @ 1..) => read.extend_from_slice(&some[..count]),
                        _ => return,
                    }
                }
            });
        }
    });
    (origin, serving)
}

/// What a gateway makes of an answer before it passes it on.
type Change = Box<dyn FnMut(&str, Value) -> Value + Send>;

/// A gateway that is not what it should be: it stands before the real one, which may not be known yet.
#[derive(Clone, Default)]
struct Between {
    gateway: Arc<Mutex<Option<std::net::SocketAddr>>>,
    change: Arc<Mutex<Option<Change>>>,
}

impl Between {
    async fn respond(self, asked: String) -> Vec<u8> {
        let at = self.gateway.lock().unwrap_or_else(PoisonError::into_inner).unwrap();
        let mut answer = Wire::open(at).await.ask(asked.clone()).await;
        let called = asked.split_once("\r\n\r\n").and_then(|(_, body)| serde_json::from_str::<Value>(body).ok());
        if let Some(change) = self.change.lock().unwrap_or_else(PoisonError::into_inner).as_mut()
            && let (Some(called), 200) = (called, answer.status)
        {
            let call: Value = serde_json::from_str(called["payload"].as_str().unwrap()).unwrap();
            answer.body = change(call["method"].as_str().unwrap(), answer.json()).to_string().into_bytes();
        }
        let kept = |line: &&str| {
            let line = line.to_ascii_lowercase();
            !line.starts_with("content-length") && !line.starts_with("connection")
        };
        let head: Vec<&str> = answer.head().lines().filter(kept).collect();
        let head =
            format!("{}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n", head.join("\r\n"), answer.body.len());
        [head.as_bytes(), &answer.body].concat()
    }

    fn changes(&self, change: impl FnMut(&str, Value) -> Value + Send + 'static) {
        *self.change.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(change));
    }

    fn changes_nothing(&self) {
        *self.change.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// The page's files, as any web server hands them out, and another page that has the page in it.
async fn static_host() -> (String, JoinSet<()>) {
    serve(|asked: String| async move {
        let path = asked.split(' ').nth(1).unwrap_or_default().trim_start_matches('/').to_owned();
        if path == "frame.html" {
            let head = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nConnection: close\r\n\r\n";
            return [&head[..], b"<iframe src='/'></iframe>"].concat();
        }
        let name = if path.is_empty() { "index.html" } else { &path };
        let Some((_, file)) = APPROVALS_PAGE.iter().find(|(known, _)| *known == name) else {
            return b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".to_vec();
        };
        let kind = match Path::new(name).extension().and_then(|ext| ext.to_str()) {
            Some("html") => "text/html",
            Some("css") => "text/css",
            _ => "text/javascript",
        };
        let head = format!(
            "HTTP/1.1 200 OK\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
            file.len()
        );
        [head.as_bytes(), file.as_bytes()].concat()
    })
    .await
}

/// What an approver does on the page.
struct Hands(Browser);

impl Hands {
    async fn fill(&mut self, id: &str, text: &str) {
        self.0.evaluate(&format!("document.getElementById('{id}').value = {}; true", json!(text))).await;
    }

    async fn click(&mut self, id: &str) {
        self.0.evaluate(&format!("document.getElementById('{id}').click(); true")).await;
    }

    async fn says(&mut self, text: &str) {
        self.0.sees(&format!("document.getElementById('message')?.textContent.includes({})", json!(text))).await;
    }

    async fn text(&mut self, id: &str) -> String {
        let text = self.0.evaluate(&format!("document.getElementById('{id}').textContent")).await;
        text.as_str().unwrap().to_owned()
    }

    async fn follow(&mut self, id: &str) {
        self.0.evaluate(&format!("location.hash = '#tools/{id}'; true")).await;
    }

    /// Goes to the list, and waits until nothing is wrong with it.
    async fn lists(&mut self) {
        self.follow("").await;
        let is_there = "!document.getElementById('calls').hidden && document.getElementById('message').textContent === '' && \
                        !document.body.classList.contains('busy')";
        self.0
            .sees(&format!("{is_there} && document.querySelector('#list a') && !document.querySelector('#list .bad')"))
            .await;
    }

    /// Keeps back what the page sends, until it is let go.
    async fn holds(&mut self) {
        let hold = "{ const { fetch } = globalThis; const held = new Promise((go) => { globalThis.letGo = () => { globalThis.fetch = fetch; go(); }; }); \
                    globalThis.fetch = async (...all) => { await held; return fetch(...all); }; true }";
        self.0.evaluate(hold).await;
    }

    async fn lets_go(&mut self) {
        self.0.evaluate("letGo(); true").await;
    }

    /// Waits until nothing is under way.
    async fn is_idle(&mut self) {
        self.0.sees("!document.body.classList.contains('busy')").await;
    }

    async fn sees_call(&mut self) {
        self.0.sees("!document.getElementById('call').hidden && !document.getElementById('decide').hidden").await;
    }
}

/// For another web server, whose operator compares one digest.
#[test]
fn the_page_is_written_for_another_web_server_and_nothing_is_overwritten() {
    let shell = crate::shell::Shell::new();
    let written = shell.run("gateway --write-page www/approvals --json").ok().json();
    for (name, file) in APPROVALS_PAGE {
        assert_eq!(shell.read(&format!("www/approvals/{name}")), file);
    }
    let digest: String = Sha256::digest(APPROVALS_PAGE[0].1).iter().map(|byte| format!("{byte:02x}")).collect();
    assert_eq!(written["sha256"], digest);
    shell.run("gateway --write-page www/approvals").fails(30, &["is there already"]);
    shell.run("gateway --write-page www/other --check").fails(2, &["cannot be used with"]);
}

/// The page's script and style are those that its text names by their digests, so that the digest of the text is that of the page.
#[test]
fn the_page_names_its_files_by_their_digests() {
    let [(_, html), (css, style), (js, script)] = APPROVALS_PAGE;
    for (name, file) in [(css, style), (js, script)] {
        let named = format!("\"{name}\" integrity=\"sha256-{}\"", STANDARD.encode(Sha256::digest(file)));
        assert!(html.contains(&named), "crates/gateway/src/http/approvals/page.html must have {named}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_approver_enrols_a_browser_looks_at_a_call_and_approves_it_and_a_gateway_that_changes_something_is_found_out()
 {
    let (Some(python), Some(chromium)) = (python(), chromium()) else { return };
    let between = Between::default();
    let proxy = between.clone();
    let (url, _between) = serve(move |asked| proxy.clone().respond(asked)).await;
    let (host, _host) = static_host().await;
    let desk = Desk::new(&url).await;
    let gateway: Gateway = desk.gateway("127.0.0.1:0", &format!("{FAST}origins = [\"{host}\"]\n")).await;
    *between.gateway.lock().unwrap_or_else(PoisonError::into_inner) = Some(gateway.at);

    let mut page = Hands(Browser::start(python, &chromium, &host, &desk.stage.shell.path("browser")));
    page.0.tell(json!({ "do": "view", "width": 420, "height": 860 })).await;
    page.0.tell(json!({ "do": "open" })).await;
    page.0.sees("document.body?.dataset.state === 'ready'").await;

    // What the page makes of the vectors of the specification.
    let vectors = std::fs::read_to_string(root().join("tests/vectors/nats-rpc-v1.json")).unwrap();
    let check = format!(
        "({})({vectors})",
        include_str!("vectors.js").split_once("async").map(|(_, rest)| format!("async{}", rest.trim_end())).unwrap()
    );
    assert_eq!(page.0.evaluate(&check).await, json!([]));

    // Spaces that are seen as none or as one.
    assert_eq!(page.0.evaluate("visible('a  b')").await, "a  b");
    assert_eq!(
        page.0.evaluate("'  a  b c '.replace(MARKED, escaped)").await,
        "\\u0020\\u0020a\\u0020\\u0020b c\\u0020"
    );

    // A key that stays in the browser, enrolled by its request.
    for (id, text) in [("environment", "dev"), ("agent", "tina"), ("gateway", url.as_str())] {
        page.fill(id, text).await;
    }
    page.click("make").await;
    page.says("stays in this browser").await;
    let request = page.0.evaluate("document.getElementById('request').value").await;
    let thumbprint = KeyRequest::verify(request.as_str().unwrap()).unwrap().thumbprint();
    assert!(page.text("own").await.contains(&thumbprint));
    let taken = "store => new Promise(done => { const all = indexedDB.open('sealwire-approvals'); all.onsuccess = () => { \
                 const get = all.result.transaction('approver').objectStore('approver').get('me'); get.onsuccess = () => \
                 crypto.subtle.exportKey('pkcs8', get.result.privateKey).then(() => done('taken'), error => done(error.name)) } })";
    assert_eq!(page.0.evaluate(&format!("({taken})()")).await, "InvalidAccessError");
    let enrolment = desk.enrol("tina", request.as_str().unwrap());
    page.fill("enrolment", &enrolment.replace("\"tina\"", "\"hugo\"")).await;
    page.click("read").await;
    page.says("for another key or agent").await;
    page.fill("enrolment", &enrolment).await;
    page.click("read").await;
    page.says("Compare these").await;
    let service = desk.stage.shell.read_json("tools.service-key.json");
    assert!(page.text("pins").await.contains(service["x"].as_str().unwrap()));
    // Another tab has another key by now, or other pins, which this one must not undo.
    let kept = |change: &str| {
        format!(
            "new Promise(done => {{ const all = indexedDB.open('sealwire-approvals'); all.onsuccess = () => {{ \
             const approver = all.result.transaction('approver', 'readwrite').objectStore('approver'); const get = approver.get('me'); \
             get.onsuccess = () => {{ const me = get.result; {change}; \
             approver.put(me, 'me').onsuccess = () => {{ all.result.close(); done(true) }} }} }} }})"
        )
    };
    page.0.evaluate(&kept("me.x = me.x.split('').reverse().join('')")).await;
    page.click("pin").await;
    page.says("another key by now").await;
    let other = "me.pins = [{ service: 'vault', kid: 'svc:dev/vault:1', x: me.x }]";
    page.0.evaluate(&kept(&format!("me.x = me.x.split('').reverse().join(''); {other}"))).await;
    page.click("pin").await;
    page.says("Pinned").await;
    assert!(page.text("own").await.contains("svc:dev/vault:1"));
    page.0.evaluate(&kept("me.pins.shift()")).await;
    page.click("make").await;
    page.says("has a key by now").await;
    page.0
        .evaluate(
            "new BroadcastChannel('sealwire-approvals').postMessage(''); document.body.dataset.state = 'old'; true",
        )
        .await;
    page.0.sees("document.body?.dataset.state === 'ready'").await;
    let own = page.text("own").await;
    assert!(own.contains("svc:dev/tools:") && !own.contains("svc:dev/vault:1"), "{own}");

    // A token that has ended, then one that is bound to the key. The link is what a chat would show.
    let bound = |age_s: u64| {
        desk.token("tina", |request| {
            request.now_s -= age_s;
            request.cnf = Some(Confirmation { kid: None, jkt: Some(thumbprint.clone()) });
        })
    };
    let hostile = "1<img src=x onerror=document.title=1>\u{202e}p\u{430}y\u{e0041}";
    let msg = format!("{hostile}{}", "long ".repeat(150));
    let id = desk.waits(&msg).await;
    page.fill("token", &bound(1_000)).await;
    page.click("sign-in-button").await;
    page.says("has ended").await;
    page.fill("token", &bound(0)).await;
    page.click("sign-in-button").await;
    page.0.sees(&format!("document.querySelector('#list a')?.getAttribute('href') === '#tools/{id}'")).await;
    page.0.evaluate("document.querySelector('#list a').click(); true").await;
    page.sees_call().await;
    let shown = page.text("params").await;
    assert!(shown.contains("1<img src=x") && shown.contains("\\u202e") && shown.contains("\\udb40\\udc41"), "{shown}");
    assert!(
        shown.contains("in ASCII") && shown.contains("p\\u0430y") && shown.matches("long ").count() >= 150,
        "{shown}"
    );
    assert!(!shown.contains(['\u{202e}', '\u{e0041}']));
    page.0
        .sees(
            "document.querySelectorAll('#call img').length === 0 && document.title === 'Calls that wait for approval'",
        )
        .await;
    let facts = page.text("facts").await;
    for fact in ["dev/tools", "log/append", "planner", "nobody", "treasurer: 0 of 1"] {
        assert!(facts.contains(fact), "{fact}: {facts}");
    }

    // A gateway that changes, leaves out, or repeats what the service has signed.
    let changes: [(&str, Change); 4] = [
        (
            "the text of the call",
            Box::new(|_, mut answer| {
                answer["payload"] = answer["payload"].as_str().unwrap().replace("long ", "short ").into();
                answer
            }),
        ),
        (
            "no proof",
            Box::new(|_, mut answer| {
                answer["headers"] = "".into();
                answer
            }),
        ),
        (
            "a hint",
            Box::new(
                |_, _| json!({ "headers": "", "payload": "{\"jsonrpc\":\"2.0\",\"error\":{\"code\":-32010,\"message\":\"unauthenticated\"},\"id\":null}" }),
            ),
        ),
        (
            "another proof",
            Box::new(|_, mut answer| {
                answer["headers"] = answer["headers"].as_str().unwrap().replace("NatsRpc e", "NatsRpc f").into();
                answer
            }),
        ),
    ];
    for (what, change) in changes {
        page.lists().await;
        between.changes(change);
        page.follow(&id).await;
        let expected = if what == "a hint" { "has not signed it" } else { "not to be trusted" };
        page.says(expected).await;
        page.0.sees("document.getElementById('call').hidden").await;
        between.changes_nothing();
    }
    // An answer to another request of the same approver.
    page.lists().await;
    let mut kept = None;
    between.changes(move |method, answer| match kept {
        None if method != "rpc.approval" => answer,
        _ => kept.get_or_insert(answer).clone(),
    });
    page.follow(&id).await;
    page.sees_call().await;
    page.follow("").await;
    page.0.sees("document.querySelector('#list .bad') !== null").await;
    page.follow(&id).await;
    page.says("answers another request").await;
    between.changes_nothing();

    // Two steps, and the call runs once.
    page.lists().await;
    page.follow(&id).await;
    page.sees_call().await;
    page.fill("reason", "looks right").await;
    page.click("approve").await;
    page.0.sees("!document.getElementById('confirm').hidden").await;
    assert_eq!(
        page.text("what").await,
        format!("Approve as treasurer: log/append of planner, because: \"looks right\" {}", page.text("digest").await)
    );
    assert_eq!(desk.waits(&msg).await, id, "nothing was signed by the first step");
    page.click("sign").await;
    page.says("is approved").await;
    page.0.sees("document.getElementById('facts').textContent.includes('tina (treasurer)')").await;
    assert!(page.text("facts").await.contains(": \"looks right\""));
    assert_eq!(desk.ends(&msg).await, Ok(json!({ "lines": 1 })));
    assert_eq!(desk.ends(&msg).await, Err(Some(-32017)));

    // A click is for the request that is on the page, whatever is under way: what was written for one is not signed for another.
    let (first, second) = (desk.waits("first").await, desk.waits("second").await);
    page.follow(&first).await;
    page.0.sees("document.getElementById('params').textContent.includes('first')").await;
    page.sees_call().await;
    page.fill("reason", "the first").await;
    page.click("approve").await;
    page.holds().await;
    page.follow(&second).await;
    page.0.sees("document.getElementById('call').hidden").await;
    for id in ["sign", "approve", "sign"] {
        page.click(id).await;
    }
    page.lets_go().await;
    page.0.sees("document.getElementById('params').textContent.includes('second')").await;
    page.sees_call().await;
    page.is_idle().await;
    page.0.sees("document.getElementById('reason').value === '' && document.getElementById('confirm').hidden").await;
    page.click("sign").await;
    page.is_idle().await;
    assert_eq!(
        (desk.waits("first").await, desk.waits("second").await),
        (first.clone(), second.clone()),
        "nothing signed"
    );
    page.follow(&first).await;
    page.0.sees("document.getElementById('params').textContent.includes('first')").await;
    page.sees_call().await;
    page.click("approve").await;
    page.holds().await;
    page.click("sign").await;
    page.follow(&second).await;
    page.0.sees("document.getElementById('call').hidden").await;
    page.lets_go().await;
    page.says(&format!("{first} is approved")).await;
    page.0.sees("document.getElementById('params').textContent.includes('second')").await;
    assert_eq!(desk.ends("first").await, Ok(json!({ "lines": 2 })));
    assert_eq!(desk.waits("second").await, second);

    // A token is forgotten at once, and what is under way shows nothing any more.
    page.is_idle().await;
    page.holds().await;
    page.follow(&first).await;
    page.0.sees("document.body.classList.contains('busy')").await;
    let forgotten = "document.getElementById('sign-out').click(); !document.getElementById('sign-in').hidden";
    assert_eq!(page.0.evaluate(forgotten).await, true);
    page.lets_go().await;
    page.is_idle().await;
    page.0.sees("document.getElementById('call').hidden && document.getElementById('calls').hidden").await;

    // The key is there after the page was left, served by the same host; the token is not.
    let denied = desk.waits("denied").await;
    page.0.tell(json!({ "do": "open", "path": format!("/#tools/{denied}") })).await;
    page.0.tell(json!({ "do": "evaluate", "script": "location.reload(); true" })).await;
    page.0.sees("document.body?.dataset.state === 'ready' && !document.getElementById('sign-in').hidden").await;
    page.fill("token", &bound(0)).await;
    page.click("sign-in-button").await;
    page.sees_call().await;
    page.click("deny").await;
    page.0.sees("!document.getElementById('confirm').hidden").await;
    page.click("sign").await;
    page.says("is denied").await;
    assert_eq!(desk.ends("denied").await, Err(Some(-32002)));

    // A token that ends while the page is open.
    page.0.evaluate("{ const now = Date.now; Date.now = () => now() + 3600000; true }").await;
    page.follow("").await;
    page.says("has ended").await;
    page.0.sees("!document.getElementById('sign-in').hidden && document.getElementById('calls').hidden").await;

    // Not in another page. A key that is deleted leaves nothing behind.
    page.0.tell(json!({ "do": "open", "path": "/frame.html" })).await;
    page.0
        .sees("document.querySelector('iframe')?.contentDocument?.getElementById('message')?.textContent.includes('inside another one')")
        .await;
    page.0.tell(json!({ "do": "open" })).await;
    page.0.sees("document.body?.dataset.state === 'ready'").await;
    page.fill("forget-name", "hugo").await;
    page.click("forget-button").await;
    page.says("Type the agent's name").await;
    page.fill("forget-name", "tina").await;
    page.click("forget-button").await;
    page.says("The key is deleted").await;
    page.0.sees("document.body?.dataset.state === 'ready' && !document.getElementById('key').hidden && document.getElementById('request').value === ''").await;

    // The gateway serves the page as well, and another web server's key is not there.
    page.0.tell(json!({ "do": "open", "url": url, "path": "/approvals" })).await;
    page.0.sees("document.body?.dataset.state === 'ready' && !document.getElementById('key').hidden").await;
    assert_eq!(page.0.evaluate("document.getElementById('gateway').value").await, json!(url));
    let said = page.0.tell(json!({ "do": "said" })).await;
    for said in said.as_array().unwrap() {
        let log = said["log"].as_str().unwrap_or_default();
        let is_usual = said.get("request").is_some() || log.starts_with("Failed to load resource");
        assert!(is_usual, "{said}");
    }
    page.0.end().await;
    assert_eq!(within(LONG, gateway.stop()).await.0, Some(0));
    desk.stage.end().await;
}
