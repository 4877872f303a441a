#![allow(clippy::unwrap_used, clippy::indexing_slicing, reason = "tests")]
use nkeys::KeyPair;
use serde_json::{Value, json};

use super::*;
use crate::jose::b64;

/// A file of the form that nsc writes. `claims` are added to those of the user.
fn file(user: &KeyPair, claims: &Value) -> String {
    let mut all = json!({ "sub": user.public_key(), "iat": 1000, "nats": { "type": "user" } });
    for (name, value) in claims.as_object().unwrap() {
        all[name] = value.clone();
    }
    blocks(&format!("{}.{}.c2ln", b64(r#"{"typ":"JWT","alg":"ed25519-nkey"}"#), b64(all.to_string())), user)
}

fn blocks(jwt: &str, user: &KeyPair) -> String {
    let seed = user.seed().unwrap();
    format!(
        "-----BEGIN NATS USER JWT-----\n{jwt}\n------END NATS USER JWT------\n\n***** IMPORTANT *****\nkeep it\n\n\
         -----BEGIN USER NKEY SEED-----\n{seed}\n------END USER NKEY SEED------\n\n*****\n"
    )
}

fn fault(text: &str) -> CredsFault {
    UserCreds::parse(text).err().unwrap()
}

#[test]
fn a_file_is_read_as_nsc_writes_it_and_as_editors_leave_it() {
    let user = KeyPair::new_user();
    let text = file(&user, &json!({}));
    for text in
        [text.clone(), text.replace('\n', "\r\n"), text.replace("------END", "-----END"), format!("\n\n  {text}")]
    {
        let creds = UserCreds::parse(&text).unwrap();
        assert_eq!(creds.key.public(), user.public_key());
        assert_eq!(creds.jwt.split('.').count(), 3);
        assert_eq!(creds.life.check(5), Ok(()));
        assert_eq!(creds.life.left_to_renew(5), None);
    }
}

#[test]
fn what_is_missing_doubled_or_of_another_kind_is_named() {
    let (user, other) = (KeyPair::new_user(), KeyPair::new_user());
    let text = file(&user, &json!({}));
    let (jwt, seed) = text.split_once("*****").unwrap();
    let account = KeyPair::new_account();
    let account_seed = account.seed().unwrap();
    for (text, expected) in [
        (String::new(), CredsFault::NoJwt),
        ("hunter2".to_owned(), CredsFault::NoJwt),
        (seed.to_owned(), CredsFault::NoJwt),
        (user.seed().unwrap(), CredsFault::NoJwt),
        (jwt.to_owned(), CredsFault::NoSeed),
        (format!("{jwt}{text}"), CredsFault::SeveralJwts),
        (format!("{text}{seed}"), CredsFault::SeveralSeeds),
        (file(&user, &json!({ "sub": other.public_key() })), CredsFault::Mismatch),
        (file(&user, &json!({ "sub": account.public_key() })), CredsFault::NotOfUser),
        (text.replace(&user.seed().unwrap(), &account_seed), CredsFault::NotOfUser),
        (text.replace("NATS USER JWT", "NATS ACCOUNT JWT"), CredsFault::NotOfUser),
        (text.replace(&user.seed().unwrap(), &user.seed().unwrap()[..50]), CredsFault::Seed),
        (file(&user, &json!({ "nats": { "bearer_token": true } })), CredsFault::Bearer),
        (file(&user, &json!({ "exp": "soon" })), CredsFault::Jwt),
        (blocks("a.b", &user), CredsFault::Jwt),
        (blocks("a.b.c.d", &user), CredsFault::Jwt),
        (blocks(&"x".repeat(MOST + 1), &user), CredsFault::TooLong),
        // Cut in the middle, as a file is that is still being written.
        (text[..text.len() / 3].to_owned(), CredsFault::NoSeed),
    ] {
        let found = fault(&text);
        assert_eq!(found, expected, "{text}");
        assert!(!found.to_string().contains("hunter2") && !found.to_string().contains("SU"), "{found}");
    }
}

#[test]
fn dates_are_those_of_the_jwt() {
    let creds = |claims| UserCreds::parse(&file(&KeyPair::new_user(), &claims)).unwrap().life;
    let life = creds(json!({ "exp": 2000, "nbf": 1100 }));
    assert_eq!(life.check(1099), Err(CredsFault::NotYet { in_s: 1 }));
    assert_eq!((life.check(1100), life.check(1999)), (Ok(()), Ok(())));
    assert_eq!(life.check(2000), Err(CredsFault::Expired { ago_s: 0 }));
    // The last fifth.
    assert_eq!(
        (life.left_to_renew(1799), life.left_to_renew(1800), life.left_to_renew(3000)),
        (None, Some(200), Some(0))
    );
    let looks = |now_s: u64| life.look_in(now_s).as_secs();
    assert_eq!((looks(1000), looks(1790), looks(1800), looks(1999), looks(3000)), (60, 10, 20, 1, 1));
    // The last week of a year.
    let year_s = 365 * 24 * 60 * 60;
    let year = creds(json!({ "exp": 1000 + year_s }));
    assert_eq!(year.left_to_renew(1000 + year_s - WEEK_S - 1), None);
    assert_eq!(year.left_to_renew(1000 + year_s - WEEK_S), Some(WEEK_S));
}
