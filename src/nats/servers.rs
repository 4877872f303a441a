//! The known brokers, and which one to try next.
//! Never replaces the configured addresses: brokers that a broker lists are only added to a single configured address.

use std::net::IpAddr;
use std::time::Duration;

use async_nats::ServerAddr;
use aws_lc_rs::rand;

use super::Info;

/// Where a broker listens.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Address {
    pub(super) host: String,
    pub(super) port: u16,
    /// Whether TLS is required, whatever the broker says.
    pub(super) tls: bool,
    /// The name that the broker's certificate must have.
    pub(super) tls_name: String,
    /// If it is a WebSocket, where on the web server.
    pub(super) path: Option<String>,
}

impl Address {
    /// `nats://host:port` or `tls://host:port`; `ws://host:port/path` or `wss://host:port/path`.
    pub(crate) fn parse(url: &str) -> Option<Self> {
        for (web, scheme, port) in [("ws://", "nats", 80), ("wss://", "tls", 443)] {
            let Some(rest) = url.strip_prefix(web) else { continue };
            let (host, path) = rest.split_at(rest.find('/').unwrap_or(rest.len()));
            let port = if host.rsplit(']').next().is_some_and(|end| end.contains(':')) { None } else { Some(port) };
            let port = port.map(|port| format!(":{port}")).unwrap_or_default();
            let path = Some(if path.is_empty() { "/".to_owned() } else { path.to_owned() });
            return Some(Self { path, ..Self::parse(&format!("{scheme}://{host}{port}"))? });
        }
        let address: ServerAddr = url.parse().ok()?;
        let host = address.host().trim_matches(['[', ']']).to_owned();
        (!host.is_empty()).then(|| Self {
            tls_name: host.clone(),
            port: address.port(),
            tls: address.tls_required(),
            host,
            path: None,
        })
    }

    /// Host and port, as HTTP writes them.
    #[cfg(feature = "websockets")]
    pub(super) fn authority(&self) -> String {
        match self.host.contains(':') {
            true => format!("[{}]:{}", self.host, self.port),
            false => format!("{}:{}", self.host, self.port),
        }
    }
}

/// All known brokers, tried in turn.
#[derive(Debug)]
pub(super) struct Servers {
    configured: Vec<Address>,
    told: Vec<Address>,
    /// Whether to connect to others than the configured ones.
    follow: bool,
    /// The one tried last.
    last: Option<Address>,
}

/// The most other brokers that a broker may list.
const MOST_TOLD: usize = 64;

impl Servers {
    pub(super) fn new(configured: Vec<Address>, follow: bool) -> Self {
        Self { configured, told: Vec::new(), follow, last: None }
    }

    pub(super) fn len(&self) -> usize {
        self.configured.len() + self.told.len()
    }

    /// Returns the one after the one tried last. So a broker that was just lost is tried last: if its machine is gone,
    /// an attempt takes seconds.
    pub(super) fn next(&mut self) -> Option<Address> {
        let all = || self.configured.iter().chain(&self.told);
        let after = self.last.as_ref().and_then(|last| all().position(|address| address == last));
        let next = after.and_then(|last| all().nth(last + 1)).or_else(|| all().next()).cloned();
        self.last.clone_from(&next);
        next
    }

    /// Takes note of other brokers that a broker lists. If several are configured, the list is ignored: with other
    /// names for the same brokers, the lost one would be tried again too soon.
    ///
    /// Anybody on the path can have written what arrived before TLS began; the caller leaves that out.
    pub(super) fn told(&mut self, info: &Info) {
        let [configured] = self.configured.as_slice() else { return };
        if info.connect_urls.is_empty() || !self.follow {
            return;
        }
        let scheme = if configured.tls { "tls" } else { "nats" };
        let told = info.connect_urls.iter().take(MOST_TOLD);
        let told = told.filter_map(|url| Address::parse(&format!("{scheme}://{url}")));
        self.told = told
            .filter(|address| (&address.host, address.port) != (&configured.host, configured.port))
            // Brokers mostly list IP addresses, but their certificates contain names.
            .map(|address| match address.host.parse::<IpAddr>() {
                Ok(_) => Address { tls_name: configured.tls_name.clone(), ..address },
                Err(_) => address,
            })
            .collect();
    }
}

/// Puts addresses into an order drawn by lot, so that many programs with the same list do not all go to its first broker.
pub(super) fn shuffle<T>(addresses: &mut [T]) {
    for last in (1..addresses.len()).rev() {
        addresses.swap(last, usize::from(random()) % (last + 1));
    }
}

fn random() -> u16 {
    let mut random = [0; 2];
    // Without randomness no connection can be made anyway.
    rand::fill(&mut random).unwrap_or_default();
    u16::from_be_bytes(random)
}

/// How long to wait before attempt number `attempt` to reconnect: no time until each of `servers` has been tried once,
/// then 50 ms doubling up to 2 s. Up to a quarter is added, so that the clients of a restarted broker do not all
/// reconnect at once.
///
/// If brokers have refused us, `refusals` times in a row, a second doubling up to 20 s, and between half of that and half as much again:
/// whoever decides on logins may have too many to decide on, and a broker that refuses many at once is busy with nothing else. Clients that
/// were refused at one moment come back at all others.
#[must_use]
pub fn pause(attempt: usize, servers: usize, refusals: usize) -> Duration {
    let Some(exponent) = attempt.checked_sub(servers.max(1)).and_then(|late| late.checked_sub(1)) else {
        return Duration::ZERO;
    };
    let (least, spread) = match refusals.checked_sub(1) {
        None => {
            let base = (50_u64 << exponent.min(8)).min(2_000);
            (base, base / 4)
        }
        Some(exponent) => {
            let base = (1_000_u64 << exponent.min(8)).min(20_000);
            (base / 2, base)
        }
    };
    Duration::from_millis(least + u64::from(random()) % (spread + 1))
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    fn addresses(urls: &[&str]) -> Vec<Address> {
        urls.iter().map(|url| Address::parse(url).unwrap()).collect()
    }

    fn hosts(servers: &mut Servers, count: usize) -> Vec<String> {
        (0..count).map(|_| servers.next().unwrap().host).collect()
    }

    #[test]
    fn the_broker_that_was_lost_is_tried_last() {
        let mut servers = Servers::new(addresses(&["nats://a", "nats://b", "nats://c"]), true);
        assert_eq!(hosts(&mut servers, 2), ["a", "b"]);
        // Connected to b, and lost it.
        assert_eq!(hosts(&mut servers, 4), ["c", "a", "b", "c"]);
        assert!(Servers::new(Vec::new(), true).next().is_none());
    }

    #[test]
    fn a_web_socket_has_the_ports_of_the_web_and_a_path() {
        let parsed = |url: &str| {
            let Address { host, port, tls, tls_name, path } = Address::parse(url).unwrap();
            assert_eq!(host, tls_name);
            (host, port, tls, path.unwrap())
        };
        assert_eq!(parsed("ws://a"), ("a".to_owned(), 80, false, "/".to_owned()));
        assert_eq!(parsed("wss://a/nats/ws"), ("a".to_owned(), 443, true, "/nats/ws".to_owned()));
        assert_eq!(parsed("ws://[::1]:8080/"), ("::1".to_owned(), 8080, false, "/".to_owned()));
        assert_eq!(parsed("wss://[::1]"), ("::1".to_owned(), 443, true, "/".to_owned()));
        assert_eq!(Address::parse("tls://a").unwrap().path, None);
    }

    #[test]
    fn every_order_of_addresses_is_drawn() {
        let listed = addresses(&["nats://a", "nats://b", "nats://c"]);
        // Each of the six is as likely as any other: one is missing after 300 draws once in 10^23 times.
        let drawn = (0..300).map(|_| {
            let mut addresses = listed.clone();
            shuffle(&mut addresses);
            addresses.into_iter().map(|address| address.host).collect::<String>()
        });
        let drawn: std::collections::BTreeSet<String> = drawn.collect();
        assert_eq!(drawn.into_iter().collect::<Vec<_>>(), ["abc", "acb", "bac", "bca", "cab", "cba"]);
    }

    #[test]
    fn addresses_that_a_broker_tells_are_added_to_a_single_one() {
        let info =
            |urls: &[&str]| Info { connect_urls: urls.iter().map(ToString::to_string).collect(), ..Info::default() };
        let mut servers = Servers::new(addresses(&["tls://a:4222"]), true);
        assert_eq!(hosts(&mut servers, 1), ["a"]);
        servers.told(&info(&["a:4222", "10.0.0.2:4222", "[::1]:4223", "not a url", "b:1"]));
        assert_eq!(servers.len(), 4);
        let next = servers.next().unwrap();
        assert_eq!((next.host.as_str(), next.tls_name.as_str(), next.tls), ("10.0.0.2", "a", true));
        assert_eq!(hosts(&mut servers, 3), ["::1", "b", "a"]);
        // Connected to the second broker listed, then a new list: the old entry for it is still used once, and then no more.
        assert_eq!(hosts(&mut servers, 2), ["10.0.0.2", "::1"]);
        servers.told(&info(&["b:1", "[::1]:4223", "c:1"]));
        assert_eq!(hosts(&mut servers, 5), ["c", "a", "b", "::1", "c"]);
        servers.told(&info(&["b:1"]));
        assert_eq!(hosts(&mut servers, 3), ["a", "b", "a"]);
        let many: Vec<String> = (0..1_000).map(|n| format!("h{n}:1")).collect();
        servers.told(&info(&many.iter().map(String::as_str).collect::<Vec<_>>()));
        assert_eq!(servers.len(), MOST_TOLD + 1);

        let mut several = Servers::new(addresses(&["nats://a", "nats://b"]), true);
        several.told(&info(&["c:1"]));
        assert_eq!(several.len(), 2, "all of them are configured");
        let mut alone = Servers::new(addresses(&["nats://a"]), false);
        alone.told(&info(&["c:1"]));
        assert_eq!(alone.len(), 1, "a password may not go anywhere else");
    }

    #[test]
    fn reconnecting_pauses_longer_each_time_up_to_a_bound() {
        for refusals in 0..4 {
            assert!((0..=3).all(|attempt| pause(attempt, 3, refusals).is_zero()), "each broker is tried at once");
        }
        for attempt in 4..100 {
            assert!((50..=2_500).contains(&pause(attempt, 3, 0).as_millis()), "{attempt}");
            // However long brokers could not be reached before.
            assert!((500..=1_500).contains(&pause(attempt, 3, 1).as_millis()), "{attempt}");
            assert!((10_000..=30_000).contains(&pause(attempt, 3, attempt + 2).as_millis()), "{attempt}");
        }
    }

    #[test]
    fn only_addresses_of_brokers_are_addresses() {
        assert_eq!(Address::parse("nats://h").unwrap().port, 4222);
        assert!(Address::parse("tls://h:1").unwrap().tls);
        assert!(Address::parse("not a url").is_none());
    }
}
