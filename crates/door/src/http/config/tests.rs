#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]
use super::*;

const LEAST: &str = "[door]\nlisten = \"127.0.0.1:0\"\ncredentials = \"a.json\"\n[[door.expose]]\nservice = \"math\"\n";

fn read(text: &str) -> Result<DoorConfig, String> {
    let File { mut door } = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    door.check().map(|()| door)
}

#[test]
fn what_is_left_out_has_a_meaning_and_what_is_wrong_is_said() {
    let door = read(LEAST).unwrap();
    assert_eq!((door.identity, door.connections, door.per_second, door.in_flight), (Identity::Own {}, 1_024, 50, 128));
    assert_eq!(door.expose[0].timeout(), Duration::from_secs(60));
    assert!(door.expose[0].allows("rpc.discover") && door.expose[0].a2a.is_none());
    for (from, to, said) in [
        ("127.0.0.1:0", "0.0.0.0:8480", "other machines reach"),
        ("127.0.0.1:0", "[::]:8480", "other machines reach"),
        ("127.0.0.1:0", "192.168.1.7:8480", "other machines reach"),
        ("a.json\"\n", "a.json\"\nhosts = [\"a.example:80\"]\n", "write the name alone"),
        ("a.json\"\n", "a.json\"\norigins = [\"*\"]\n", "write one as browsers do"),
        ("a.json\"\n", "a.json\"\norigins = [\"https://a.example/\"]\n", "write one as browsers do"),
        ("a.json\"\n", "a.json\"\nconnections = 0\n", "write 1 to 65536"),
        ("a.json\"\n", "a.json\"\nper_second = 0\n", "write 1 to"),
        ("a.json\"\n", "a.json\"\nidentity = { mode = \"any\" }\n", "unknown variant"),
        ("a.json\"\n", "a.json\"\nidentity = { mode = \"own\", key = \"k.json\" }\n", "unknown field `key`"),
        ("a.json\"\n", "a.json\"\nlistn = 1\n", "unknown field"),
        ("\"math\"\n", "\"math\"\ntimeout_s = 601\n", "write 1 to 600"),
        ("\"math\"\n", "\"math\"\nmethods = []\n", "nothing could be called"),
        ("\"math\"\n", "\"math\"\nmethods = [\"a b\"]\n", "not a valid method name"),
        ("\"math\"\n", "\"math\"\nmethods = [\"a/*/b\"]\n", "not a valid method name"),
        ("\"math\"\n", "\"math\"\na2a = { text_mehod = \"x\" }\n", "unknown field"),
        ("\"math\"\n", "\"math\"\na2a = { description = \"\" }\n", "write 1 to 1000"),
        ("\"math\"\n", "\"math\"\na2a = { text_param = \"x\" }\n", "needs `text_method`"),
        ("\"math\"\n", "\"math\"\na2a = { native = true, text_method = \"x\" }\n", "reads texts itself"),
        ("\"math\"\n", "\"math\"\nmethods = [\"a\"]\na2a = { text_method = \"x\" }\n", "which `methods` leaves out"),
        ("\"math\"\n", "\"math\"\n[[door.expose]]\nservice = \"math\"\n", "exposed twice"),
        ("[[door.expose]]\nservice = \"math\"\n", "expose = []\n", "nothing is exposed"),
    ] {
        let error = read(&LEAST.replace(from, to)).unwrap_err();
        assert!(error.contains(said), "{to}: {error}");
    }
    assert!(read(&LEAST.replace("127.0.0.1:0", "[::1]:8480")).is_ok());
}

#[test]
fn the_page_is_for_this_machine_alone() {
    assert!(!read(LEAST).unwrap().page, "it is off");
    let page = LEAST.replace("a.json\"\n", "a.json\"\npage = true\n");
    assert!(read(&page).unwrap().page);
    assert!(read(&page.replace("127.0.0.1:0", "[::1]:0")).is_ok());
    let tables = "\n[[door.tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"j.json\"\n[[door.expose]]";
    let mint = "page = true\ntls_cert = \"c.pem\"\ntls_key = \"k.pem\"\npublic_url = \"http://localhost:8480\"\n\
                identity = { mode = \"mint\", key = \"k.json\" }\n";
    let mint = page.replace("page = true\n", mint).replace("[[door.expose]]", tables);
    assert!(read(&mint).is_ok());
    for (from, to, said) in [
        ("127.0.0.1:0", "0.0.0.0:8443", "`page` with `listen` 0.0.0.0:8443"),
        ("127.0.0.1:0", "192.168.1.7:8443", "`page` with `listen`"),
        ("http://localhost:8480", "https://door.example", "`page` with `public_url` https://door.example"),
        ("http://localhost:8480", "https://localhost.example", "`page` with `public_url`"),
    ] {
        let error = read(&mint.replace(from, to)).unwrap_err();
        assert!(error.contains(said), "{to}: {error}");
    }
}

#[test]
fn callers_that_show_tokens_need_all_that_these_are_judged_by() {
    let tables = "\n[[door.tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"j.json\"\n[[door.expose]]";
    let mint =
        "a.json\"\npublic_url = \"https://Door.Example:8443\"\nidentity = { mode = \"mint\", key = \"k.json\" }\n";
    let mint = LEAST.replace("a.json\"\n", mint).replace("[[door.expose]]", tables);
    let door = read(&mint).unwrap();
    assert_eq!((door.hosts.as_slice(), door.tokens.unwrap().issuer.len()), (&["door.example".to_owned()][..], 1));
    assert_eq!(door.identity, Identity::Mint { key: "k.json".into(), scopes: true, dpop: Dpop::Off });
    for (from, to, said) in [
        ("127.0.0.1:0", "0.0.0.0:8443", "clear text"),
        ("public_url = \"https://Door.Example:8443\"\n", "", "`public_url` is missing"),
        ("https://Door.Example:8443", "door.example", "without a path"),
        ("https://Door.Example:8443", "https://door.example/rpc", "without a path"),
        (tables, "[[door.expose]]", "whose tokens"),
        ("a.json\"\n", "a.json\"\ntls_cert = \"c.pem\"\n", "belong together"),
        ("[[door.tokens.issuer]]", "[door.tokens]\nrequire_cnf = true\n[[door.tokens.issuer]]", "`dpop = \"require\"`"),
        ("identity = { mode = \"mint\", key = \"k.json\" }\n", "", "are for `identity = { mode = \"mint\""),
        ("mode = \"mint\", ", "mode = \"mint\", x = 1, ", "unknown field"),
        ("mode = \"mint\", ", "mode = \"mint\", dpop = \"on\", ", "`off`, `accept`, `require`"),
    ] {
        let error = read(&mint.replace(from, to)).unwrap_err();
        assert!(error.contains(said), "{to}: {error}");
    }
    let exchange = mint.replace(
        "mode = \"mint\", key = \"k.json\"",
        "mode = \"exchange\", token_endpoint = \"https://idp.example/token\", client_id = \"door\", client_secret = \"s.txt\"",
    );
    assert!(read(&exchange).is_ok());
    assert!(read(&exchange.replace("client_id = \"door\", ", "")).unwrap_err().contains("client_id"));
    let other = "[[door.tokens.issuer]]\nissuer = \"https://other.example\"\njwks = \"o.json\"\n";
    assert!(read(&format!("{mint}{other}")).is_ok());
    assert!(read(&format!("{exchange}{other}")).unwrap_err().contains("name one `[[door.tokens.issuer]]`"));
    let bound = mint
        .replace("[[door.tokens.issuer]]", "[door.tokens]\nrequire_cnf = true\n[[door.tokens.issuer]]")
        .replace("mode = \"mint\", ", "mode = \"mint\", dpop = \"require\", ");
    assert!(read(&bound).is_ok());
    let tls = mint
        .replace("127.0.0.1:0", "0.0.0.0:8443")
        .replace("a.json\"\n", "a.json\"\ntls_cert = \"c.pem\"\ntls_key = \"k.pem\"\n");
    assert!(read(&tls).is_ok());
}

#[test]
fn methods_are_named_or_begin_so() {
    let some = read(&LEAST.replace("\"math\"\n", "\"math\"\nmethods = [\"math/*\", \"ping\"]\n")).unwrap();
    let allowed = ["math/add", "math/a/b", "ping"];
    let others = ["math", "mathx", "ping/x", "rpc.discover", "Math/add", ""];
    assert!(allowed.iter().all(|method| some.expose[0].allows(method)));
    assert!(others.iter().all(|method| !some.expose[0].allows(method)));
    let all = read(LEAST).unwrap();
    assert!(["math//add", "math/ä", "a b", "/", ""].iter().all(|method| !all.expose[0].allows(method)));
}

#[test]
fn replicas_are_named_where_nobody_else_can_be_taken_for_one() {
    const KEYED: &str = "a.json\"\nseal_key = \"k\"\n";
    let replicas = "replicas = { listen = \"127.0.0.1:9480\", url = \"http://127.0.0.1:9480\", all = [\"http://127.0.0.1:9481\", \"http://127.0.0.1:9480\"] }\n";
    let good = LEAST.replace("a.json\"\n", &format!("{KEYED}{replicas}"));
    assert_eq!(read(&good).unwrap().replicas.unwrap().all.len(), 2);
    for (from, to, said) in [
        ("seal_key = \"k\"\n", "", "need one `seal_key`"),
        ("listen = \"127.0.0.1:9480\"", "listen = \"127.0.0.1:0\"", "has port 0"),
        ("listen = \"127.0.0.1:9480\"", "listen = \"0.0.0.0:9480\"", "other machines reach"),
        ("url = \"http://127.0.0.1:9480\"", "url = \"http://127.0.0.1:9482\"", "not in `all`"),
        ("http://127.0.0.1:9481", "http://10.0.0.1:9481", "is not https"),
        ("http://127.0.0.1:9481", "https://127.0.0.1:9481", "and http without"),
        ("http://127.0.0.1:9481", "http://127.0.0.1:9481/mcp", "has a path"),
        ("http://127.0.0.1:9481", "http://127.0.0.1:9481/", "has a path"),
        ("http://127.0.0.1:9481", "http://ann@127.0.0.1:9481", "user name"),
        ("http://127.0.0.1:9481", "http://127.0.0.1:9480", "is listed twice"),
        ("all = [", "tls_ca = \"c.pem\", all = [", "with `tls_cert`"),
        ("all = [", "x = 1, all = [", "unknown field"),
    ] {
        let error = read(&good.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(said), "{to}: {error}");
    }
}

#[test]
fn one_memory_of_replicas_is_for_what_callers_show_and_no_services() {
    let tables = "\n[[door.tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"j.json\"\n[[door.expose]]";
    let mint = "a.json\"\npublic_url = \"https://door.example\"\nidentity = { mode = \"mint\", key = \"k.json\" }\n\
                seal_key = \"k\"\nreplay = { environment = \"prod\", name = \"door\", nats = { urls = [\"tls://a\"], \
                user = \"a\", password_file = \"p\" } }\n";
    let good = LEAST.replace("a.json\"\n", mint).replace("[[door.expose]]", tables);
    let mut door = read(&good).unwrap();
    door.relative_to(Path::new("folder"));
    assert_eq!(door.replay.unwrap().nats.password_file.as_deref(), Some(Path::new("folder/p")));
    for (from, to, said) in [
        ("seal_key = \"k\"\n", "", "needs a `seal_key`"),
        ("name = \"door\"", "name = \"math\"", "`name` of `replay` is `math`, a service"),
        ("name = \"door\"", "name = \"a.b\"", "a.b"),
        ("name = \"door\"", "x = 1", "unknown field"),
        ("nats = {", "nats = { x = 1,", "unknown field"),
        ("password_file = \"p\"", "password = \"p\"", "write `password_file`"),
        ("urls = [\"tls://a\"]", "urls = []", "no broker address"),
        ("nats = {", "stream_messages = 9, nats = {", "write 10000 or more"),
        ("nats = {", "replicas = 6, nats = {", "write 1 to 5"),
        ("nats = {", "answer_within_ms = 9, nats = {", "write 10 to 1000"),
    ] {
        let error = read(&good.replacen(from, to, 1)).unwrap_err();
        assert!(error.contains(said), "{to}: {error}");
    }
    let own = LEAST.replace("a.json\"\n", &mint.replace("identity = { mode = \"mint\", key = \"k.json\" }\n", ""));
    let error = read(&own).unwrap_err();
    assert!(error.contains("for `mint` and `exchange`"), "{error}");
}

/// docs/doors.md describes every key, with the right default.
#[test]
fn the_page_has_every_key_and_its_example_is_one() {
    let page = include_str!("../../../../../docs/doors.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let door = read(example).unwrap();
    assert_eq!((door.listen.port(), door.expose[0].timeout_s), (8480, 30));
    let error = toml::from_str::<File>(&example.replace("[door]\n", "[door]\nx = 1\n")).err().unwrap();
    let of_service = toml::from_str::<File>(&example.replace("timeout_s", "x")).err().unwrap();
    // serde's error messages list all the keys.
    let named = format!("{} {}", error.message(), of_service.message());
    let keys = named.split('`').skip(1).step_by(2);
    let mut described = 0;
    for key in keys.filter(|key| {
        !["x", "expose"].contains(key) && key.chars().all(|c| c.is_ascii_lowercase() || c == '_' || c == '2')
    }) {
        let row = page.lines().find(|line| line.starts_with(&format!("| `{key}` |")));
        let row = row.unwrap_or_else(|| panic!("`{key}` is not on the page"));
        let cell = row.trim_end_matches(" |").rsplit("| ").next().unwrap().trim_matches('`');
        let section =
            if ["service", "methods", "timeout_s", "audience"].contains(&key) { "\"math\"\n" } else { "a.json\"\n" };
        if !["*required*", "–"].contains(&cell) {
            let written = read(&LEAST.replace(section, &format!("{section}{key} = {cell}\n"))).unwrap();
            assert_eq!(format!("{written:?}"), format!("{:?}", read(LEAST).unwrap()), "{key}");
        }
        described += 1;
    }
    assert_eq!(described, 29);
}
