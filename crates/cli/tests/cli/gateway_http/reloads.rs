//! Files that change while a gateway runs, however they are changed. docs/gateway/README.md, "Files that change".

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant, SystemTime};

use sealwire::internal::auth::{Denylist, IssueRequest, TokenIssuer};
use sealwire::{Clock as _, SystemClock};
use sealwire_testkit::within;
use serde_json::json;

use super::mint::{ask, configure, request, stage};
use super::wire::{Wire, call, post};
use super::ws::Socket;
use super::{FAST, Gateway, certificate, says};
use crate::backends::stage::LONG;

const READY: &str = "GET /readyz HTTP/1.1\r\nHost: any\r\n\r\n";

/// How a file may get another content of the same length, with the same time of modification where the way allows it.
const WAYS: [&str; 8] = [
    "written in place",
    "in place, same time",
    "renamed over",
    "renamed over, same time",
    "a link swapped",
    "a folder's link swapped",
    "removed, and made again",
    "as often as one likes",
];

/// Gives the file this content.
fn change(path: &Path, content: &str, way: &str) {
    let folder = path.parent().unwrap();
    let time = fs::metadata(path).unwrap().modified().unwrap();
    let same_time = |path: &Path| fs::File::options().write(true).open(path).unwrap().set_modified(time).unwrap();
    let beside = folder.join("beside");
    let relink = |target: &Path| {
        let link = folder.join("new-link");
        std::os::unix::fs::symlink(target, &link).unwrap();
        fs::rename(link, path).unwrap();
    };
    match way {
        "written in place" => fs::write(path, content).unwrap(),
        "in place, same time" => {
            fs::write(path, content).unwrap();
            same_time(path);
        }
        "renamed over" => {
            fs::write(&beside, content).unwrap();
            fs::rename(&beside, path).unwrap();
        }
        "renamed over, same time" => {
            fs::write(&beside, content).unwrap();
            same_time(&beside);
            fs::rename(&beside, path).unwrap();
        }
        "a link swapped" => {
            let target = folder.join(format!("target-{}", SystemClock.now_ms()));
            fs::write(&target, content).unwrap();
            same_time(&target);
            relink(&target);
        }
        // As ConfigMaps and Secrets of Kubernetes are: FILE -> ..data/FILE, ..data -> ..2026.
        "a folder's link swapped" => {
            let name = path.file_name().unwrap();
            let version = format!("..{}", SystemClock.now_ms());
            fs::create_dir(folder.join(&version)).unwrap();
            fs::write(folder.join(&version).join(name), content).unwrap();
            same_time(&folder.join(&version).join(name));
            let link = folder.join("..data_tmp");
            std::os::unix::fs::symlink(&version, &link).unwrap();
            fs::rename(link, folder.join("..data")).unwrap();
            if !fs::read_link(path).is_ok_and(|target| target.starts_with("..data")) {
                relink(&Path::new("..data").join(name));
            }
        }
        "removed, and made again" => {
            fs::remove_file(path).unwrap();
            std::thread::sleep(Duration::from_secs(1));
            fs::write(path, content).unwrap();
        }
        _ => {
            for _ in 0..3 {
                fs::write(path, content).unwrap();
                std::thread::sleep(Duration::from_millis(100));
            }
        }
    }
}

fn token(issuer: &TokenIssuer, subject: &str) -> String {
    let mut request: IssueRequest = request(subject);
    request.ttl_s = 3_000;
    issuer.issue(&request).unwrap()
}

/// Waits until a call with this token has this status, and says how long it took.
async fn until(gateway: &Gateway, token: &str, status: u16) -> Duration {
    let began = Instant::now();
    let waiting = async {
        while ask(gateway, token, &call(1, "math/add", "[1,2]")).await.status != status {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    within(LONG, waiting).await;
    began.elapsed()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_changed_denylist_or_key_set_is_noticed_however_it_was_changed() {
    let [one, two] = [(); 2].map(|()| TokenIssuer::generate("https://idp.example").unwrap());
    let stage = stage(&one).await;
    configure(&stage, FAST);
    let until_s = SystemClock.now_s() + 3_000;
    let denies = |subject: &str| Denylist::default().with_subject(subject, until_s).to_json();
    stage.shell.write("denylist.json", &denies("amy"));
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    let [amy, bob, zed] = ["amy", "bob", "zed"].map(|subject| token(&one, subject));
    let zed_of_two = token(&two, "zed");
    let path = stage.shell.path("denylist.json");
    // Each way takes the rights from one, and gives them back to the other.
    for (n, way) in WAYS.iter().enumerate() {
        let (denied, again, name) = if n % 2 == 0 { (&bob, &amy, "bob") } else { (&amy, &bob, "amy") };
        assert_eq!(fs::metadata(&path).unwrap().len() as usize, denies(name).len(), "the same length");
        change(&path, &denies(name), way);
        let took = until(&gateway, denied, 401).await;
        assert_eq!(ask(&gateway, again, &call(1, "math/add", "[1,2]")).await.status, 200, "{way}");
        println!("denylist {way}: {took:?}");
    }
    let path = stage.shell.path("idp-jwks.json");
    for (n, way) in WAYS.iter().enumerate() {
        let (next, valid, withdrawn) = if n % 2 == 0 { (&two, &zed_of_two, &zed) } else { (&one, &zed, &zed_of_two) };
        assert_eq!(fs::metadata(&path).unwrap().len() as usize, next.public_jwks().len(), "the same length");
        change(&path, &next.public_jwks(), way);
        let took = until(&gateway, withdrawn, 401).await;
        assert_eq!(ask(&gateway, valid, &call(1, "math/add", "[1,2]")).await.status, 200, "{way}");
        println!("token keys {way}: {took:?}");
    }
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_cannot_be_read_shows_and_closes_the_gateway_in_time_where_it_was_told_to() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = stage(&issuer).await;
    let (ann, add) = (token(&issuer, "ann"), call(1, "math/add", "[1,2]"));
    let good = Denylist::default().with_subject("zed", SystemClock.now_s() + 3_000).to_json();
    let keys = issuer.public_jwks();
    for closes in [false, true] {
        let more = if closes { "reload = { fail_closed_after_s = 2 }\n" } else { "" };
        configure(&stage, &format!("{FAST}{more}"));
        stage.shell.write("denylist.json", &good);
        let mut gateway = Gateway::spawn(&stage.shell).await;
        gateway.is_ready(200).await;
        let (denylist, jwks) = (stage.shell.path("denylist.json"), stage.shell.path("idp-jwks.json"));
        for (what, path, content) in [("denylist", &denylist, &good), ("token keys", &jwks, &keys)] {
            for fault in [
                "is not JSON",
                "is cut short",
                "is empty",
                "is a folder",
                "is gone",
                "is writable for all",
                "is a link to nothing",
                "is a loop of links",
            ] {
                let bearer = format!("Authorization: Bearer {ann}\r\n");
                let mut socket = None;
                if closes && fault == "is gone" {
                    socket = Some(Socket::open(gateway.wire().await, "tools", &bearer).await);
                }
                fs::remove_file(path).unwrap();
                match fault {
                    "is not JSON" => fs::write(path, "x").unwrap(),
                    "is cut short" => fs::write(path, &content[..content.len() - 2]).unwrap(),
                    "is empty" => fs::write(path, "").unwrap(),
                    "is a folder" => fs::create_dir(path).unwrap(),
                    "is gone" => {}
                    "is writable for all" => {
                        fs::write(path, content).unwrap();
                        fs::set_permissions(path, std::os::unix::fs::PermissionsExt::from_mode(0o666)).unwrap();
                    }
                    "is a link to nothing" => std::os::unix::fs::symlink("nothing", path).unwrap(),
                    _ => std::os::unix::fs::symlink(path.file_name().unwrap(), path).unwrap(),
                }
                // It shows at once, and by default the last good state stays in force.
                gateway.is_ready(503).await;
                let said = gateway.wire().await.ask(READY).await;
                assert!(String::from_utf8_lossy(&said.body).contains("a changed file is refused"), "{what} {fault}");
                let expected = if closes { 503 } else { 200 };
                until(&gateway, &ann, expected).await;
                if closes {
                    let refused = ask(&gateway, &ann, &add).await;
                    refused.is(503, -32014);
                    assert_eq!(refused.json()["error"]["data"], json!({ "outcome": "not_sent" }), "{what} {fault}");
                    if let Some(socket) = &mut socket {
                        assert_eq!(within(LONG, socket.rest()).await.1, 1013, "{what} {fault}");
                    }
                }
                match fault {
                    "is a folder" => fs::remove_dir(path).unwrap(),
                    "is gone" => {}
                    _ => fs::remove_file(path).unwrap(),
                }
                fs::write(path, content).unwrap();
                gateway.is_ready(200).await;
                until(&gateway, &ann, 200).await;
            }
        }
        says(&mut gateway.stderr, "REFUSED, the one before stays in force").await;
        let (code, said) = gateway.stop().await;
        assert_eq!(code, Some(0));
        assert_eq!(said.contains("EVERYTHING IS REFUSED"), closes, "{said}");
        assert!(said.contains("denylist") && said.contains("token keys"), "{said}");
    }
    // With `own` there is nothing that it could close for.
    super::configure(&stage.shell, "reload = { fail_closed_after_s = 2 }\n", "");
    stage.shell.run("gateway --check").fails(30, &["`reload`", "mint"]);
    stage.end().await;
}

/// A certificate that is renewed is shown to new connections, and one that cannot be used is not.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_renewed_certificate_is_shown_and_a_change_of_what_is_read_once_is_told() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = stage(&issuer).await;
    for name in ["one", "two", "gateway"] {
        certificate(&stage.shell, name);
    }
    configure(&stage, &format!("{FAST}tls_cert = \"gateway.pem\"\ntls_key = \"gateway.key\"\n"));
    let mut gateway = Gateway::spawn(&stage.shell).await;
    let here = stage.shell.read("gateway.toml").replace(":0\"", &format!(":{}\"", gateway.at.port()));
    stage.shell.write("here.toml", &here);
    let is_shown = async |gateway: &str| {
        let shown = async {
            while stage.shell.run(&format!("gateway --config {gateway} --ready")).code != 0 {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        };
        within(2 * LONG, shown).await;
    };
    is_shown("here.toml").await;
    for name in ["one", "two"] {
        for part in ["pem", "key"] {
            let path = stage.shell.path(&format!("gateway.{part}"));
            fs::copy(stage.shell.path(&format!("{name}.{part}")), &path).unwrap();
        }
        // The command accepts exactly the certificate in the file.
        is_shown("here.toml").await;
    }
    // A certificate without its key.
    fs::copy(stage.shell.path("one.pem"), stage.shell.path("gateway.pem")).unwrap();
    says(&mut gateway.stderr, "REFUSED, the one before stays in force").await;
    stage.shell.write("two.toml", &here.replace("gateway.pem", "two.pem").replace("gateway.key", "two.key"));
    is_shown("two.toml").await;

    let key = stage.shell.path("gateway-key.json");
    let content = fs::read(&key).unwrap();
    let now = SystemTime::now();
    fs::write(&key, content).unwrap();
    fs::File::options().write(true).open(&key).unwrap().set_modified(now).unwrap();
    says(&mut gateway.stderr, "read only at the start: restart the gateway").await;
    assert_eq!(gateway.stop().await.0, Some(0));
    stage.end().await;
}

/// What one party does to the log hides nothing of another's, and names where it came from.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn refused_tokens_are_logged_by_their_reason_and_with_their_address() {
    let issuer = TokenIssuer::generate("https://idp.example").unwrap();
    let stranger = TokenIssuer::generate("https://idp.example").unwrap();
    let stage = stage(&issuer).await;
    configure(&stage, FAST);
    stage.shell.write("denylist.json", &Denylist::default().with_subject("zed", SystemClock.now_s() + 3_000).to_json());
    let gateway = Gateway::spawn(&stage.shell).await;
    gateway.is_ready(200).await;
    let add = call(1, "math/add", "[1,2]");
    let (bad, revoked, forged) = (token(&stranger, "ann"), token(&issuer, "zed"), token(&issuer, "planner"));
    let old = {
        let mut request = request("ann");
        request.now_s -= 1_000;
        issuer.issue(&request).unwrap()
    };
    // The noise goes on before, between and after.
    let (at, noise) = (gateway.at, post("/rpc/tools", &format!("Authorization: Bearer {bad}\r\n"), &add));
    let noisy = tokio::spawn(async move {
        let mut wire = Wire::open(at).await;
        for _ in 0..1_500 {
            assert_eq!(wire.ask(&noise).await.status, 401);
        }
    });
    for token in [&revoked, &forged, &old] {
        tokio::time::sleep(Duration::from_millis(300)).await;
        assert_eq!(ask(&gateway, token, &add).await.status, 401);
    }
    within(2 * LONG, noisy).await.unwrap();
    for lines in ["Authorization: Bearer  ", "Authorization: bearer   "] {
        let good = token(&issuer, "ann");
        let answer = gateway.wire().await.ask(post("/rpc/tools", &format!("{lines}{good}\r\n"), &add)).await;
        assert_eq!(answer.status, 200, "RFC 9110 §11.4: one space or more");
    }
    let evil = post("/rpc/tools", "", &add).replace("Host: localhost", "Host: evil.example");
    for _ in 0..50 {
        assert_eq!(gateway.wire().await.ask(&evil).await.status, 403);
    }
    let (code, said) = gateway.stop().await;
    assert_eq!(code, Some(0));
    let lines: Vec<_> = said.lines().filter(|line| line.contains("a token was refused")).collect();
    for why in ["revoked", "expired", "names the gateway's agent"] {
        assert!(lines.iter().any(|line| line.contains(why)), "{why}: {lines:?}");
    }
    assert!(lines.len() < 60, "1,503 were refused: {}", lines.len());
    let others: Vec<_> = said.lines().filter(|line| line.contains("a request was refused")).collect();
    assert!((1..20).contains(&others.len()), "50 were refused: {others:?}");
    assert!(lines.iter().chain(&others).all(|line| line.contains("127.0.0.1:")), "{lines:?} {others:?}");
    assert!(![&bad, &revoked, &forged, &old].iter().any(|token| said.contains(token.as_str())));
    stage.end().await;
}
