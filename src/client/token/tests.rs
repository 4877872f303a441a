#![allow(clippy::unwrap_used, clippy::panic, reason = "tests")]
use super::*;
use crate::clock::ManualClock;
use crate::jose::b64;
use std::sync::atomic::{AtomicU64, Ordering};

const NOW: u64 = 1_790_000_000;

/// A token as far as a client reads it.
fn token(iat: u64, exp: u64) -> String {
    let claims = format!(r#"{{"iat":{iat},"exp":{exp}}}"#);
    format!("{}.{}.{}", b64(br#"{"alg":"EdDSA"}"#), b64(claims.as_bytes()), b64(b"signature"))
}

/// Answers from a list, then with the last entry for ever.
#[derive(Debug)]
struct Script {
    asked: AtomicU64,
    answers: Vec<Option<String>>,
    takes: Duration,
}

impl TokenSource for Arc<Script> {
    fn fetch(&self) -> FetchedToken<'_> {
        Box::pin(async {
            let turn = usize::try_from(self.asked.fetch_add(1, Ordering::SeqCst)).unwrap();
            tokio::time::sleep(self.takes).await;
            let answer = self.answers.get(turn).or(self.answers.last()).unwrap();
            answer.clone().ok_or_else(|| TokenFault::Other("the source is down".into()))
        })
    }
}

fn tokens(answers: Vec<Option<String>>, takes: Duration) -> (TokenCache, Arc<Script>, Arc<ManualClock>) {
    let script = Arc::new(Script { asked: AtomicU64::new(0), answers, takes });
    let clock = Arc::new(ManualClock::at(NOW));
    (TokenCache::new(Arc::new(Arc::clone(&script)), clock.clone()), script, clock)
}

#[test]
fn renewal_is_due_a_minute_or_a_fifth_of_its_life_before_the_end() {
    let renew = |iat, exp| CachedToken::new(token(iat, exp), NOW).unwrap().renew_s;
    assert_eq!(renew(NOW, NOW + 900), NOW + 840);
    assert_eq!(renew(NOW, NOW + 100), NOW + 80);
    assert_eq!(renew(NOW, NOW + 3), NOW + 3);
    // Without a usable `iat`, its life counts from now.
    assert_eq!(renew(NOW + 5_000, NOW + 900), NOW + 900);
}

#[test]
fn text_that_is_no_usable_token_is_told_apart() {
    let fault = |text: &str| CachedToken::new(text.to_owned(), NOW).unwrap_err();
    assert!(matches!(fault("nonsense"), TokenFault::NotAToken(_)));
    assert!(matches!(fault(""), TokenFault::NotAToken(_)));
    assert!(matches!(fault(&token(NOW - 10, NOW)), TokenFault::Expired { ago_s: 0 }));
    let eternal = format!("{}.{}.{}", b64(b"{}"), b64(b"{}"), b64(b"s"));
    assert!(matches!(fault(&eternal), TokenFault::NoExpiry));
    let cached = CachedToken::new(format!("\n {} \r\n", token(NOW, NOW + 9)), NOW).unwrap();
    assert_eq!(cached.as_str(), token(NOW, NOW + 9));
    assert!(!format!("{cached:?}").contains(cached.as_str()));
}

#[tokio::test(start_paused = true)]
async fn token_is_renewed_before_it_expires_without_holding_up_calls() {
    let (first, second) = (token(NOW, NOW + 100), token(NOW + 85, NOW + 900));
    let (tokens, script, clock) = tokens(vec![Some(first.clone()), Some(second.clone())], Duration::from_secs(2));
    assert_eq!(tokens.current().await.unwrap().as_str(), first);
    clock.set_ms((NOW + 79) * 1000);
    assert_eq!(tokens.current().await.unwrap().as_str(), first);
    assert_eq!(script.asked.load(Ordering::SeqCst), 1);
    clock.set_ms((NOW + 85) * 1000);
    tokio::time::advance(Duration::from_secs(6)).await;
    let started = Instant::now();
    assert_eq!(tokens.current().await.unwrap().as_str(), first, "the source is slow, the old one still good");
    assert_eq!(started.elapsed(), GRACE, "the call that asked waited a little");
    assert_eq!(tokens.current().await.unwrap().as_str(), first);
    assert_eq!(started.elapsed(), GRACE, "the next one not at all");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(tokens.current().await.unwrap().as_str(), second);
    assert_eq!(script.asked.load(Ordering::SeqCst), 2);
}

#[tokio::test(start_paused = true)]
async fn failed_renewal_is_an_error_only_once_the_old_token_has_expired() {
    let first = token(NOW, NOW + 100);
    let (tokens, script, clock) = tokens(vec![Some(first.clone()), None], Duration::ZERO);
    tokens.current().await.unwrap();
    clock.set_ms((NOW + 90) * 1000);
    for n in 2..5 {
        tokio::time::advance(PAUSE).await;
        assert_eq!(tokens.current().await.unwrap().as_str(), first);
        assert_eq!(tokens.current().await.unwrap().as_str(), first);
        assert_eq!(script.asked.load(Ordering::SeqCst), n, "not asked again at once");
    }
    clock.set_ms((NOW + 100) * 1000);
    let fault = tokens.current().await.unwrap_err();
    assert_eq!(fault.to_string(), "the source is down");
    let asked = script.asked.load(Ordering::SeqCst);
    for _ in 0..100 {
        tokens.current().await.unwrap_err();
    }
    assert_eq!(script.asked.load(Ordering::SeqCst), asked, "a failing source is left alone for a second");
}

#[tokio::test(start_paused = true)]
async fn source_that_hangs_or_panics_is_an_error() {
    let (hanging, _, _) = tokens(vec![Some(token(NOW, NOW + 9))], Duration::from_secs(3_600));
    assert!(matches!(*hanging.current().await.unwrap_err(), TokenFault::Slow));

    #[derive(Debug)]
    struct Panics;
    impl TokenSource for Panics {
        fn fetch(&self) -> FetchedToken<'_> {
            panic!("on purpose")
        }
    }
    let tokens = TokenCache::new(Arc::new(Panics), Arc::new(ManualClock::at(NOW)));
    assert!(matches!(*tokens.current().await.unwrap_err(), TokenFault::Panicked));
}

/// A program that ends in the middle of a refresh, and a runtime that does.
#[tokio::test(start_paused = true)]
async fn a_refresh_that_is_dropped_is_no_panic() {
    let (hanging, ..) = tokens(vec![Some(token(NOW, NOW + 9))], Duration::from_secs(3_600));
    let shared = Arc::clone(&hanging.0);
    assert!(timeout(Duration::from_millis(10), hanging.current()).await.is_err());
    drop(hanging);
    let mut done = shared.done.subscribe();
    if *done.borrow_and_update() == 0 {
        done.changed().await.unwrap();
    }
    assert!(matches!(shared.lock().fault.as_deref(), Some(TokenFault::Dropped)));

    let cache = TokenCache(Arc::clone(&shared));
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_time().build().unwrap();
    shared.lock().asked = None;
    drop(runtime.spawn(async move { drop(cache.current().await) }));
    let started = std::time::Instant::now();
    let wait_for = |is_refreshing: bool| {
        while shared.lock().refreshing.is_some() != is_refreshing {
            assert!(started.elapsed() < Duration::from_secs(30), "refreshing: {}", !is_refreshing);
            std::thread::yield_now();
        }
    };
    wait_for(true);
    shared.lock().fault = None;
    runtime.shutdown_background();
    wait_for(false);
    assert!(matches!(shared.lock().fault.as_deref(), Some(TokenFault::Dropped)));
}

#[tokio::test(start_paused = true)]
async fn cancelled_call_does_not_end_the_refresh() {
    let (tokens, script, _) = tokens(vec![Some(token(NOW, NOW + 100))], Duration::from_secs(1));
    assert!(timeout(Duration::from_millis(10), tokens.current()).await.is_err());
    tokens.current().await.unwrap();
    assert_eq!(script.asked.load(Ordering::SeqCst), 1);
}

#[tokio::test(start_paused = true)]
async fn suspicion_has_the_source_asked_again_but_not_at_will() {
    let (tokens, script, _) = tokens(vec![Some(token(NOW, NOW + 900))], Duration::ZERO);
    tokens.current().await.unwrap();
    for _ in 0..100 {
        tokens.invalidate_soon();
        tokens.current().await.unwrap();
    }
    assert_eq!(script.asked.load(Ordering::SeqCst), 1, "a hint can be forged");
    tokio::time::advance(PAUSE).await;
    tokens.current().await.unwrap();
    assert_eq!(script.asked.load(Ordering::SeqCst), 2);
}

#[cfg(unix)]
#[tokio::test]
async fn command_of_a_relative_folder_is_found_from_the_working_folder() {
    use std::os::unix::fs::PermissionsExt as _;
    // Below the working directory, since a test cannot change it.
    std::fs::create_dir_all("target").unwrap();
    let folder = tempfile::tempdir_in("target").unwrap();
    let relative = folder.path().strip_prefix(std::env::current_dir().unwrap()).unwrap_or(folder.path());
    assert!(relative.is_relative(), "{}", relative.display());
    let program = relative.join("fetch");
    // Copied by another process: a program that this one has open for writing, if only through a fork that another test's thread makes at
    // that moment, cannot be run ("text file busy").
    let text = relative.join("text");
    std::fs::write(&text, "#!/bin/sh\nprintf '%s %s' \"$1\" \"$(pwd)\"\n").unwrap();
    std::fs::set_permissions(&text, std::fs::Permissions::from_mode(0o700)).unwrap();
    assert!(std::process::Command::new("cp").arg(&text).arg(&program).status().unwrap().success());
    let command = CommandToken::new("./fetch", ["now".to_owned()], relative);
    let printed = command.fetch().await.unwrap();
    assert!(printed.starts_with("now ") && printed.ends_with(relative.to_str().unwrap()), "{printed}");
    assert!(!format!("{command:?}").contains("now"), "arguments may be secrets");
    // A bare name is looked up in `PATH`, and an empty folder means the working directory.
    for folder in [relative, std::path::Path::new("")] {
        assert_eq!(CommandToken::new("echo", ["x".to_owned()], folder).fetch().await.unwrap().trim(), "x");
    }
}
