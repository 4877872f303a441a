//! Finds what is wrong with a broker's settings before anything is sent.
//! Never quotes a value: each may be a secret in the wrong place.

use super::{BusConfig, BusError, context};
use crate::loopback;
use crate::name::is_name;

impl BusConfig {
    /// Checks these settings: only broker addresses in `urls`, one complete way to log in, and no password that would
    /// be sent in clear text.
    ///
    /// # Errors
    /// [`BusError::NoUrl`] and [`BusError::Member`].
    pub fn check(&self) -> Result<(), BusError> {
        if let Some(context) = &self.context {
            let reason =
                if self.is_context_alone() { context::check_name(context).err() } else { Some(BESIDE_CONTEXT) };
            return reason.map_or(Ok(()), |reason| Err(BusError::Member { member: "context".to_owned(), reason }));
        }
        if self.urls.is_empty() {
            return Err(BusError::NoUrl);
        }
        self.check_login()?;
        for (position, url) in self.urls.iter().enumerate() {
            let wrong = |reason| BusError::Member { member: format!("urls[{position}]"), reason };
            let address = Address::of(url).map_err(wrong)?;
            if address.web && cfg!(not(feature = "websockets")) {
                return Err(wrong("is a WebSocket, for which this program was built without the feature `websockets`"));
            }
            let tls = self.tls_first || self.tls_ca.is_some() || self.tls_cert.is_some();
            if address.web && tls && !address.tls {
                return Err(wrong(
                    "is a WebSocket without TLS, which `tls_ca`, `tls_cert` and `tls_first` demand: write wss://",
                ));
            }
            if self.shows_its_secret_to(&address) && !self.allow_plaintext {
                return Err(wrong(PLAINTEXT));
            }
        }
        Ok(())
    }

    /// Whether nothing else says where to connect, or as whom.
    fn is_context_alone(&self) -> bool {
        let Self { urls, context: _, user, password, password_file, token, .. } = self;
        let Self {
            nkey_seed,
            nkey_seed_file,
            creds_file,
            tls_ca,
            tls_cert,
            tls_key,
            tls_first,
            no_randomize,
            jetstream_domain,
            access_token,
            ..
        } = self;
        let secrets = [password, token, nkey_seed].into_iter().all(Option::is_none) && jetstream_domain.is_none();
        let files =
            [password_file, nkey_seed_file, creds_file, tls_ca, tls_cert, tls_key].into_iter().all(Option::is_none);
        urls.is_empty() && user.is_none() && secrets && files && !tls_first && !no_randomize && !access_token
    }

    fn check_login(&self) -> Result<(), BusError> {
        let wrong = |member: &str, reason| Err(BusError::Member { member: member.to_owned(), reason });
        let password = self.password.is_some() || self.password_file.is_some();
        let nkey = self.nkey_seed.is_some() || self.nkey_seed_file.is_some();
        if self.password.is_some() && self.password_file.is_some() {
            return wrong("password", "give it or `password_file`, not both");
        }
        if self.nkey_seed.is_some() && self.nkey_seed_file.is_some() {
            return wrong("nkey_seed", "give it or `nkey_seed_file`, not both");
        }
        if password && self.user.is_none() {
            return wrong("user", "is missing: a password is of no use without it");
        }
        let ways = [self.user.is_some(), self.token.is_some(), nkey, self.creds_file.is_some(), self.access_token];
        if ways.into_iter().filter(|is_given| *is_given).count() > 1 {
            let reason = "give one of `user`, `token`, an nkey seed, `creds_file` and `access_token`: they are different ways to log in";
            return wrong("user", reason);
        }
        if self.jetstream_domain.as_deref().is_some_and(|domain| !is_name(domain)) {
            return wrong("jetstream_domain", "is no domain: write its name, such as hub");
        }
        match (&self.tls_cert, &self.tls_key) {
            (Some(_), None) => wrong("tls_key", "is missing: the certificate is of no use without it"),
            (None, Some(_)) => wrong("tls_cert", "is missing: the key is of no use without it"),
            _ => Ok(()),
        }
    }

    /// Whether an eavesdropper would learn the login secret. An nkey only signs the broker's challenge.
    fn shows_its_secret_to(&self, address: &Address<'_>) -> bool {
        let secret = self.sends_a_secret();
        let tls = address.tls || self.tls_first || self.tls_ca.is_some() || self.tls_cert.is_some();
        secret && !tls && !address.is_loopback()
    }

    fn sends_a_secret(&self) -> bool {
        self.password.is_some() || self.password_file.is_some() || self.token.is_some() || self.access_token
    }

    /// Whether every connection requires TLS, whichever broker of the cluster it goes to.
    pub(crate) fn demands_tls(&self) -> bool {
        let mut addresses = self.urls.iter().map(|url| Address::of(url));
        self.tls_first
            || self.tls_ca.is_some()
            || self.tls_cert.is_some()
            || addresses.all(|address| address.is_ok_and(|it| it.tls))
    }

    /// Whether to connect to further brokers that a broker lists. Not if they would be sent a password that may only be
    /// used within this machine.
    pub(crate) fn may_follow(&self) -> bool {
        // A proxy leads to none of the addresses behind it.
        let web = self.urls.iter().any(|url| Address::of(url).is_ok_and(|address| address.web));
        !web && (!self.sends_a_secret() || self.allow_plaintext || self.demands_tls())
    }

    /// The addresses, for messages; anything that is not an address is hidden.
    pub(crate) fn shown(&self) -> String {
        let shown = |url| Address::of(url).map_or("(no address)", |address| address.url);
        if let Some(context) = &self.context {
            return format!("those of the context `{}`", context.escape_debug());
        }
        self.urls.iter().map(|url| shown(url)).collect::<Vec<_>>().join(", ")
    }
}

/// `nats://host:port`, `tls://host:port`, `ws://host:port/path` or `wss://host:port/path`, port and path optional.
struct Address<'a> {
    url: &'a str,
    tls: bool,
    web: bool,
    host: &'a str,
}

impl<'a> Address<'a> {
    fn of(url: &'a str) -> Result<Self, &'static str> {
        if url.contains('@') {
            return Err(USER_INFORMATION);
        }
        let (tls, web, rest) = match url.split_once("://") {
            Some(("nats", rest)) => (false, false, rest),
            Some(("tls", rest)) => (true, false, rest),
            Some(("ws", rest)) => (false, true, rest),
            Some(("wss", rest)) => (true, true, rest),
            _ => return Err(NO_ADDRESS),
        };
        let (rest, path) = rest.split_at(rest.find('/').filter(|_| web).unwrap_or(rest.len()));
        if !path.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"/-._~%:+=,".contains(&byte)) {
            return Err(NO_ADDRESS);
        }
        let (host, port) = match rest.strip_prefix('[') {
            Some(rest) => {
                let (host, port) = rest.split_once(']').ok_or(NO_ADDRESS)?;
                let is_address = host.parse::<std::net::Ipv6Addr>().is_ok();
                (is_address.then_some(host).ok_or(NO_ADDRESS)?, port)
            }
            None => {
                let (host, port) = rest.split_at(rest.find(':').unwrap_or(rest.len()));
                let is_name = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'.' | b'-' | b'_');
                let holds = (1..=253).contains(&host.len()) && host.bytes().all(is_name);
                (holds.then_some(host).ok_or(NO_ADDRESS)?, port)
            }
        };
        let port_holds = match port.strip_prefix(':') {
            Some(port) => {
                port.bytes().all(|byte| byte.is_ascii_digit()) && port.parse::<u16>().is_ok_and(|port| port > 0)
            }
            None => port.is_empty(),
        };
        if port_holds { Ok(Self { url, tls, web, host }) } else { Err(NO_ADDRESS) }
    }

    /// Whether data sent there stays within this machine.
    fn is_loopback(&self) -> bool {
        loopback::is_address(self.host) || loopback::is_name(self.host)
    }
}

const BESIDE_CONTEXT: &str =
    "says where to connect, and as whom: leave out every other key but `allow_plaintext`, or leave out this one";
const NO_ADDRESS: &str =
    "is no broker address: write nats://host:port or tls://host:port, or wss://host/path for a WebSocket";
const USER_INFORMATION: &str = "holds user information, which would show wherever the address does: write \
     nats://host:port or tls://host:port, and the members `user` and `password_file` (or `token`, `nkey_seed_file` or `creds_file`)";
const PLAINTEXT: &str = "would carry the password or token in clear text to another machine: write tls://host:port, log in \
     with an nkey or a `.creds` file, or set `allow_plaintext` where nobody else can listen";

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;
    use std::path::PathBuf;
    use zeroize::Zeroizing;

    fn with_password(url: &str) -> BusConfig {
        let password = Some(Zeroizing::new("hunter2".to_owned()));
        BusConfig { user: Some("planner".to_owned()), password, ..BusConfig::open(url) }
    }

    fn refused(bus: &BusConfig) -> String {
        bus.check().unwrap_err().to_string()
    }

    #[test]
    fn only_addresses_of_brokers_are_taken() {
        for good in [
            "nats://a",
            "nats://a:4222",
            "tls://nats-1.example:4222",
            "nats://127.0.0.1:1",
            "nats://[::1]:4222",
            "ws://a",
            "wss://a:8443/nats/ws",
            "ws://[::1]/",
        ] {
            assert!(BusConfig::open(good).check().is_ok(), "{good}");
        }
        for bad in [
            "",
            "a",
            "a:4222",
            "nats:a",
            "nats://",
            "http://a",
            "ws://",
            "wss://a?b",
            "wss://a/b#c",
            "wss://a/b c",
            "ws:///a",
            "nats://a/b",
            "nats://a:",
            "nats://a:0",
            "nats://a:+1",
            "nats://a:70000",
            "nats://a b",
            "nats://[::1",
            "nats://[a]:1",
            "nats://a?b",
            "not a url",
        ] {
            let said = refused(&BusConfig::open(bad));
            assert!(said.starts_with("`urls[0]`") && said.contains("nats://host:port"), "{bad}: {said}");
        }
        assert!(matches!(BusConfig::default().check(), Err(BusError::NoUrl)));
    }

    /// SPEC.md §20.
    #[test]
    fn user_information_in_a_url_is_refused_and_not_printed() {
        for bad in ["nats://ann:hunter2@a:4222", "tls://hunter2@a", "ann:hunter2@a", "nats://a:4222@hunter2"] {
            let bus = BusConfig { urls: vec!["nats://b".to_owned(), bad.to_owned()], ..BusConfig::default() };
            let said = format!("{} {bus:?} {}", refused(&bus), bus.shown());
            assert!(said.starts_with("`urls[1]`") && said.contains("password_file"), "{said}");
            assert!(!said.contains("hunter2") && !said.contains("ann"), "{said}");
        }
    }

    /// SPEC.md §20.
    #[test]
    fn passwords_in_clear_text_to_another_machine_are_refused() {
        let token = BusConfig { token: Some(Zeroizing::new("t0ken".to_owned())), ..BusConfig::open("nats://10.0.0.1") };
        let file = BusConfig { password: None, password_file: Some("p".into()), ..with_password("nats://broker:4222") };
        for bus in [
            token,
            file,
            with_password("nats://broker:4222"),
            with_password("nats://localhost.example"),
            with_password("nats://0.0.0.0"),
            with_password("nats://127.1"),
        ] {
            let said = refused(&bus);
            assert!(said.contains("clear text") && said.contains("allow_plaintext"), "{said}");
            assert!(BusConfig { allow_plaintext: true, ..bus.clone() }.check().is_ok());
            assert!(BusConfig { tls_ca: Some("ca.pem".into()), ..bus.clone() }.check().is_ok(), "TLS is demanded then");
            assert!(BusConfig { tls_first: true, ..bus }.check().is_ok(), "and then");
        }
        for url in [
            "tls://broker",
            "nats://localhost:4222",
            "nats://LOCALHOST.:4222",
            "nats://nats.localhost",
            "nats://127.0.0.2",
            "nats://[::1]:4222",
        ] {
            assert!(with_password(url).check().is_ok(), "{url}");
        }
        let one_of_two =
            BusConfig { urls: vec!["tls://a".to_owned(), "nats://b".to_owned()], ..with_password("tls://a") };
        assert!(refused(&one_of_two).starts_with("`urls[1]`"));
        let nkey = BusConfig { nkey_seed: Some(Zeroizing::new("SU".to_owned())), ..BusConfig::open("nats://broker") };
        assert!(nkey.check().is_ok(), "an nkey is not sent");
    }

    /// The broker's list of its cluster must not lead a password off this machine, or around TLS.
    #[test]
    fn what_a_broker_names_is_followed_only_where_nothing_shows() {
        assert!(!with_password("nats://localhost").may_follow());
        assert!(with_password("tls://broker").may_follow() && with_password("tls://broker").demands_tls());
        assert!(BusConfig { allow_plaintext: true, ..with_password("nats://localhost") }.may_follow());
        let open = BusConfig::open("nats://localhost");
        assert!(open.may_follow() && !open.demands_tls());
    }

    #[test]
    fn an_access_token_is_the_login_of_calls_alone_and_not_shown_to_listeners() {
        let bus = BusConfig { access_token: true, ..BusConfig::open("nats://localhost") };
        assert!(bus.check().is_ok() && !bus.may_follow());
        assert!(bus.check_without_calls().unwrap_err().to_string().starts_with("`access_token`"));
        assert!(refused(&BusConfig { urls: vec!["nats://broker".to_owned()], ..bus }).contains("clear text"));
    }

    #[test]
    fn half_a_login_and_two_logins_are_errors() {
        let path = || Some(PathBuf::from("file"));
        let seed = || Some(Zeroizing::new("SU".to_owned()));
        let open = || BusConfig::open("nats://localhost");
        for (member, bus) in [
            ("user", BusConfig { password: seed(), ..open() }),
            ("user", BusConfig { password_file: path(), ..open() }),
            ("password", BusConfig { password_file: path(), ..with_password("nats://localhost") }),
            ("nkey_seed", BusConfig { nkey_seed: seed(), nkey_seed_file: path(), ..open() }),
            ("user", BusConfig { token: seed(), ..with_password("nats://localhost") }),
            ("user", BusConfig { nkey_seed_file: path(), ..with_password("nats://localhost") }),
            ("user", BusConfig { creds_file: path(), ..with_password("nats://localhost") }),
            ("user", BusConfig { creds_file: path(), nkey_seed: seed(), ..open() }),
            ("user", BusConfig { creds_file: path(), token: seed(), ..open() }),
            ("user", BusConfig { access_token: true, token: seed(), ..open() }),
            ("context", BusConfig { context: Some("x".to_owned()), access_token: true, ..BusConfig::default() }),
            ("tls_key", BusConfig { tls_cert: path(), ..open() }),
            ("jetstream_domain", BusConfig { jetstream_domain: Some("hub.>".to_owned()), ..open() }),
            ("tls_cert", BusConfig { tls_key: path(), ..open() }),
        ] {
            assert!(refused(&bus).starts_with(&format!("`{member}`")), "{member}: {}", refused(&bus));
        }
    }
}
