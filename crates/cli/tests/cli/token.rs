//! `sealwire token`: tokens that a service accepts, shown without being trusted, and revoked.

use crate::shell::Shell;
use sealwire::internal::auth::{Denylist, KeySet, Symmetric, TokenRules, TokenVerifier};
use serde_json::{Value, json};
use sha2::Digest as _;

const ISSUE: &str = "token issue --key token-key.json --subject planner --audience dev/math";

fn shell() -> Shell {
    let shell = Shell::new();
    shell.run("keys new-token-key https://dev.example").ok();
    shell
}

fn now() -> u64 {
    std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH).unwrap().as_secs()
}

fn claims(shell: &Shell, token: &str) -> Value {
    shell.run_with_stdin(&["token", "inspect", "--json"], token.as_bytes()).ok().json()["claims"].clone()
}

#[test]
fn a_token_that_services_would_refuse_is_refused_in_the_words_of_the_command_line() {
    let shell = Shell::new();
    shell.run("keys new-token-key https://issuer.example").ok();
    let issue = "token issue --key token-key.json --subject planner";
    shell.run(&format!("{issue} --audience demo")).fails(30, &["`demo` names no environment", "dev/demo"]);
    shell.run(&format!("{issue} --audience dev/demo --ttl 8h")).fails(30, &["at most 1h"]);
    shell.run(&format!("{issue} --audience dev/demo --audience https://api.example --ttl 1h")).ok();
}

#[test]
fn issued_token_is_accepted_by_a_service_with_that_key_set() {
    let shell = shell();
    let ran =
        shell.run(&format!("{ISSUE} --role calc --role teller --actor helper --cnf-kid planner.k1 --ttl 5m")).ok();
    let token = ran.stdout.trim();
    assert_eq!(ran.stdout.lines().count(), 1, "the token and nothing else");
    assert_eq!(ran.stderr, "", "as `token_command` it would say so with every call");
    let keys = KeySet::from_jwks(&shell.read("jwks.json"), "https://dev.example", "test", Symmetric::Refused).unwrap();
    let verifier = TokenVerifier::new(TokenRules::new("dev/math"), keys);
    let accepted = verifier.verify(token, &sha2::Sha256::digest(token).into(), now()).unwrap();
    assert_eq!((accepted.subject.as_str(), accepted.actor.as_deref()), ("planner", Some("helper")));
    assert_eq!(accepted.roles.iter().collect::<Vec<_>>(), ["calc", "teller"]);
    assert_eq!(accepted.expires_at - accepted.issued_at, 300);
    assert_eq!(accepted.cnf.as_ref().unwrap().kid.as_deref(), Some("planner.k1"));
}

#[test]
fn token_file_is_private_and_replaced_in_one_step() {
    let shell = shell();
    for _ in 0..2 {
        let result = shell.run(&format!("{ISSUE} --out planner.jwt --json")).ok().json();
        assert_eq!(result["file"], "planner.jwt");
        assert!(result["expires_at"].as_u64().unwrap() > now() + 890, "15 minutes unless told otherwise");
        assert_eq!(shell.mode("planner.jwt"), 0o600);
    }
    assert_eq!(shell.files(), ["jwks.json", "planner.jwt", "token-key.json"]);
    shell.never_said(shell.read("planner.jwt").trim());
    shell.never_said(shell.read_json("token-key.json")["d"].as_str().unwrap());
}

#[test]
fn tokens_that_no_service_would_accept_are_not_issued() {
    let shell = shell();
    shell.run(&format!("{ISSUE} --ttl 2h")).fails(30, &["at most 1h"]);
    let mut words: Vec<&str> = ISSUE.split(' ').collect();
    words.extend(["--role", "not a role"]);
    shell.run_args(&words).fails(30, &["role"]);
    shell.run(&format!("{ISSUE} --claim sub=other")).fails(30, &["sub"]);
    shell.run(&format!("{ISSUE} --claim team")).fails(30, &["NAME=VALUE"]);
    shell.run(&format!("{ISSUE} --ttl 15")).fails(2, &["15m"]);
    shell.run("token issue --key token-key.json --subject planner").fails(2, &["--audience"]);
    shell.run("token issue --key nowhere.json --subject a --audience dev/math").fails(30, &["nowhere.json"]);
}

#[test]
fn further_claims_are_json_or_text() {
    let shell = shell();
    let ran =
        shell.run(&format!("{ISSUE} --audience dev/bank --claim limit=500 --claim team=red --claim tags=[\"a\"]")).ok();
    let claims = claims(&shell, &ran.stdout);
    assert_eq!(claims["aud"], json!(["dev/math", "dev/bank"]));
    assert_eq!((&claims["limit"], &claims["team"], &claims["tags"]), (&json!(500), &json!("red"), &json!(["a"])));
}

#[test]
fn inspecting_says_first_that_nothing_was_verified() {
    let shell = shell();
    let token = shell.run(&format!("{ISSUE} --role calc")).ok().stdout;
    for ran in [
        shell.run_with_stdin(&["token", "inspect"], token.as_bytes()),
        shell.run_with_stdin(&["token", "inspect", "-"], token.as_bytes()),
        shell.run_args(&["token", "inspect", token.trim()]),
    ] {
        let text = ran.ok().stdout;
        assert!(text.starts_with("NOT VERIFIED"), "{text}");
        for word in ["planner", "calc", "(in 1", "Z ("] {
            assert!(text.contains(word), "no {word} in {text}");
        }
    }
    let forged = token.trim().rsplit_once('.').unwrap().0.to_owned() + ".AAAA";
    shell.run_args(&["token", "inspect", "planner.jwt"]).fails(30, &["`sealwire token inspect < FILE`"]);
    let shown = shell.run_args(&["token", "inspect", &forged, "--json"]).ok();
    assert_eq!((&shown.json()["verified"], &shown.json()["expired"]), (&json!(false), &json!(false)));
    assert!(shown.stderr.contains("nothing in this token was verified"), "{shown:?}");
    shell.run("token inspect not-a-token").fails(30, &["three parts"]);
}

#[test]
fn hostile_claims_cannot_control_the_terminal() {
    use base64::Engine as _;
    let shell = Shell::new();
    let part = |value: Value| base64::engine::general_purpose::URL_SAFE_NO_PAD.encode(value.to_string());
    let claims = json!({ "sub": "\u{1b}]0;owned\u{7}\u{202e}", "\u{9b}2J\nfake": 1, "exp": 1 });
    let token = format!("{}.{}.AAAA", part(json!({"alg": "none"})), part(claims));
    let ran = shell.run_args(&["token", "inspect", &token]).ok();
    assert!(!ran.stdout.chars().any(|c| (c.is_control() && c != '\n') || c == '\u{202e}'), "{ran:?}");
    assert!(ran.stdout.contains("EXPIRED") && !ran.stdout.contains("\nfake"), "{ran:?}");
    let json = shell.run_args(&["token", "inspect", &token, "--json"]).ok();
    assert_eq!(json.json()["claims"]["sub"], "\u{1b}]0;owned\u{7}\u{202e}", "JSON keeps its meaning");
    assert!(json.stdout.trim_end().chars().all(|c| !c.is_control() && c != '\u{202e}'), "{json:?}");
}

#[test]
fn revoking_adds_to_the_deny_list_and_keeps_what_is_in_it() {
    let shell = shell();
    let token = shell.run(ISSUE).ok().stdout;
    let jti = claims(&shell, &token)["jti"].as_str().unwrap().to_owned();
    shell.run_with_stdin(&["token", "revoke", "--denylist", "deny.json", "--token", "-"], token.as_bytes()).ok();
    shell.run("token revoke --denylist deny.json --jti t-0002 --until 2026-09-21T14:13:20Z").ok();
    shell.run("token revoke --denylist deny.json --sub planner").ok();
    let ran = shell.run("token revoke --denylist deny.json --sub other --before 1790000000 --json").ok();
    assert_eq!(ran.json(), json!({ "file": "deny.json", "sub": "other", "before": 1_790_000_000, "created": false }));
    let list = shell.read_json("deny.json");
    let tokens: Vec<&str> = list["tokens"].as_array().unwrap().iter().map(|t| t["jti"].as_str().unwrap()).collect();
    assert!(tokens.contains(&jti.as_str()) && tokens.contains(&"t-0002"), "{list}");
    let before = |name: &str| {
        let subjects = list["subjects"].as_array().unwrap();
        subjects.iter().find(|entry| entry["sub"] == name).unwrap()["before"].as_u64().unwrap()
    };
    assert!(before("planner").abs_diff(now()) <= 10);
    assert!(before("planner") > claims(&shell, &token)["iat"].as_u64().unwrap(), "tokens of this second, too");
    assert_eq!(before("other"), 1_790_000_000);
    Denylist::from_file(shell.path("deny.json")).unwrap();
    assert_eq!(shell.files(), ["deny.json", "jwks.json", "token-key.json"]);

    shell.run("token revoke --denylist deny.json --sub third --before 5 --prune").ok();
    assert_eq!(
        shell.read_json("deny.json")["tokens"].as_array().unwrap().len(),
        if now() > 1_790_003_600 { 1 } else { 2 }
    );
    shell.run("token revoke --denylist deny.json").fails(2, &["--jti"]);
    shell.run("token revoke --denylist deny.json --jti a --sub b").fails(2, &["--sub"]);
    shell.write("deny.json", "{\"token\": []}");
    shell.run("token revoke --denylist deny.json --jti a").fails(30, &["deny.json", "token"]);
    assert_eq!(shell.read("deny.json"), "{\"token\": []}", "a list that is not understood is left alone");
}

/// A mistyped path names a list that no service reads.
#[test]
fn a_list_that_is_new_is_told() {
    let shell = Shell::new();
    shell.run("keys new-agent a --service dev/math=math.ring.json").ok();
    for (line, file, created) in [
        ("token revoke --sub planner --denylist dney.json", "dney.json", true),
        ("token revoke --sub planner --denylist dney.json", "dney.json", false),
        ("keys revoke a.k1 --ring math.ring.json --denylist deny.json", "deny.json", true),
        ("keys revoke a.k1 --ring math.ring.json --denylist deny.json", "deny.json", false),
    ] {
        let ran = shell.run(&format!("{line} --json")).ok();
        assert_eq!(ran.json()["created"], created, "{line}");
        let warned = ran.stderr.contains(&format!("`{file}` is a new list")) && ran.stderr.contains("`denylist`");
        assert!(warned == created && ran.stderr.is_empty() != created, "{ran:?}");
    }
    let ran = shell.run("token revoke --sub planner --denylist dny.json").ok();
    assert!(ran.stderr.starts_with("warning: `dny.json` is a new list"), "{ran:?}");
}

/// A service would keep using the list that it read before, and could not restart.
#[test]
fn a_list_that_no_service_would_read_is_not_written() {
    let shell = Shell::new();
    shell.run("keys new-agent a --service dev/math=math.ring.json").ok();
    let fill = |bytes: usize, until: u64| {
        let entry = |n: usize| Denylist::default().with_token(format!("{n:0>64}"), until);
        let one = entry(0).to_json().len();
        shell.write("deny.json", &(0..bytes / one).fold(Denylist::default(), |all, n| all.merge(entry(n))).to_json());
        shell.set_mode("deny.json", 0o600);
        shell.read("deny.json")
    };
    let ended = now() - 7_200;
    let full = fill(2 * Denylist::MAX_BYTES, ended);
    assert!(full.len() > Denylist::MAX_BYTES, "{}", full.len());
    let ring = shell.read("math.ring.json");
    for line in [
        "token revoke --denylist deny.json --sub planner",
        "keys revoke a.k1 --ring math.ring.json --denylist deny.json",
    ] {
        shell.run(line).fails(30, &["deny.json", "1048576", "nothing was revoked", "--prune"]);
    }
    assert!(shell.read("deny.json") == full && shell.read("math.ring.json") == ring);
    let pruned = shell.run("token revoke --denylist deny.json --sub planner --prune").ok();
    assert_eq!(pruned.stderr, "");
    let left = shell.read_json("deny.json");
    assert_eq!((&left["tokens"], &left["subjects"][0]["sub"]), (&json!([]), &"planner".into()));

    // The warning comes while there is still room.
    let many = fill(Denylist::MAX_BYTES / 4 * 5, ended);
    assert!((Denylist::MAX_BYTES / 5 * 4..Denylist::MAX_BYTES).contains(&many.len()), "{}", many.len());
    let ran = shell.run("token revoke --denylist deny.json --sub planner").ok();
    assert!(ran.stderr.starts_with("warning: `deny.json` has ") && ran.stderr.contains("--prune"), "{}", ran.stderr);
    Denylist::from_file(shell.path("deny.json")).unwrap();
}
