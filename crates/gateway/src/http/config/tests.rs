#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::panic, reason = "tests")]
use sealwire::internal::settings::Kind;

use super::*;

const LEAST: &str =
    "[gateway]\nlisten = \"127.0.0.1:0\"\ncredentials = \"a.json\"\n[[gateway.expose]]\nservice = \"math\"\n";

fn read(text: &str) -> Result<GatewayConfig, String> {
    let File { mut gateway, .. } = toml::from_str(text).map_err(|error| error.message().to_owned())?;
    check_ranges::<File>(text).map_err(|error| error.to_string())?;
    gateway.check().map(|()| gateway)
}

#[test]
fn what_is_left_out_has_a_meaning_and_what_is_wrong_is_said() {
    let gateway = read(LEAST).unwrap();
    assert_eq!(
        (gateway.identity, gateway.connections, gateway.per_second, gateway.in_flight),
        (Identity::Own {}, 1_024, 50, 128)
    );
    assert_eq!(gateway.expose[0].timeout(), Duration::from_secs(60));
    assert!(gateway.expose[0].allows("rpc.discover") && gateway.expose[0].a2a.is_none());
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
        ("\"math\"\n", "\"math\"\n[[gateway.expose]]\nservice = \"math\"\n", "exposed twice"),
        ("[[gateway.expose]]\nservice = \"math\"\n", "expose = []\n", "nothing is exposed"),
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
    let tables = "\n[[gateway.tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"j.json\"\n[[gateway.expose]]";
    let mint = "page = true\ntls_cert = \"c.pem\"\ntls_key = \"k.pem\"\npublic_url = \"http://localhost:8480\"\n\
                identity = { mode = \"mint\", key = \"k.json\" }\n";
    let mint = page.replace("page = true\n", mint).replace("[[gateway.expose]]", tables);
    assert!(read(&mint).is_ok());
    for (from, to, said) in [
        ("127.0.0.1:0", "0.0.0.0:8443", "`page` with `listen` 0.0.0.0:8443"),
        ("127.0.0.1:0", "192.168.1.7:8443", "`page` with `listen`"),
        ("http://localhost:8480", "https://gateway.example", "`page` with `public_url` https://gateway.example"),
        ("http://localhost:8480", "https://localhost.example", "`page` with `public_url`"),
    ] {
        let error = read(&mint.replace(from, to)).unwrap_err();
        assert!(error.contains(said), "{to}: {error}");
    }
}

#[test]
fn approvals_are_given_where_callers_have_tokens_and_some_service_asks_for_them() {
    let tables = "\n[gateway.approvals]\nnats = { urls = [\"nats://127.0.0.1\"], user = \"relay\", password_file = \"p\" }\n\
                  [[gateway.tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"j.json\"\n[[gateway.expose]]";
    let mint =
        "a.json\"\npublic_url = \"https://Gateway.Example:443\"\nidentity = { mode = \"mint\", key = \"k.json\" }\n";
    let mint = LEAST.replace("a.json\"\n", mint).replace("[[gateway.expose]]", tables);
    let with = mint.replace("\"math\"\n", "\"math\"\nmethods = []\napprovals = true\n");
    let gateway = read(&with).unwrap();
    assert_eq!(gateway.origins, ["https://gateway.example"], "its own page may call");
    assert!(gateway.expose[0].approvals && !gateway.expose[0].allows("rpc.approve"));
    for (text, said) in [
        (mint, "no `[[gateway.expose]]` has `approvals = true`"),
        (LEAST.replace("\"math\"\n", "\"math\"\napprovals = true\n"), "needs `[gateway.approvals]`"),
        (with.replace("password_file = \"p\"", "password = \"p\""), "`nats` of `approvals` has a secret"),
        (with.replace("methods = []\napprovals = true\n", "methods = []\n"), "is of no use"),
        (with.replace("nats://127.0.0.1\"", "x://127.0.0.1\""), "`nats` of `approvals`"),
    ] {
        let error = read(&text).unwrap_err();
        assert!(error.contains(said), "{text}: {error}");
    }
    let own = "\n[gateway.approvals]\nnats = { urls = [\"nats://127.0.0.1\"] }\n[[gateway.expose]]";
    let own = LEAST.replace("[[gateway.expose]]", own).replace("\"math\"\n", "\"math\"\napprovals = true\n");
    assert!(read(&own).unwrap_err().contains("for `mint` and `exchange`"));
}

#[test]
fn callers_that_show_tokens_need_all_that_these_are_judged_by() {
    let tables = "\n[[gateway.tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"j.json\"\n[[gateway.expose]]";
    let mint =
        "a.json\"\npublic_url = \"https://Gateway.Example:8443\"\nidentity = { mode = \"mint\", key = \"k.json\" }\n";
    let mint = LEAST.replace("a.json\"\n", mint).replace("[[gateway.expose]]", tables);
    let gateway = read(&mint).unwrap();
    assert_eq!(
        (gateway.hosts.as_slice(), gateway.tokens.unwrap().issuer.len()),
        (&["gateway.example".to_owned()][..], 1)
    );
    assert_eq!(gateway.identity, Identity::Mint { key: "k.json".into(), scopes: true, dpop: Dpop::Off });
    for (from, to, said) in [
        ("127.0.0.1:0", "0.0.0.0:8443", "clear text"),
        ("public_url = \"https://Gateway.Example:8443\"\n", "", "`public_url` is missing"),
        ("https://Gateway.Example:8443", "gateway.example", "without a path"),
        ("https://Gateway.Example:8443", "https://gateway.example/rpc", "without a path"),
        (tables, "[[gateway.expose]]", "whose tokens"),
        ("a.json\"\n", "a.json\"\ntls_cert = \"c.pem\"\n", "belong together"),
        (
            "[[gateway.tokens.issuer]]",
            "[gateway.tokens]\nrequire_cnf = true\n[[gateway.tokens.issuer]]",
            "`dpop = \"require\"`",
        ),
        ("identity = { mode = \"mint\", key = \"k.json\" }\n", "", "are for `identity = { mode = \"mint\""),
        ("mode = \"mint\", ", "mode = \"mint\", x = 1, ", "unknown field"),
        ("mode = \"mint\", ", "mode = \"mint\", dpop = \"on\", ", "`off`, `accept`, `require`"),
    ] {
        let error = read(&mint.replace(from, to)).unwrap_err();
        assert!(error.contains(said), "{to}: {error}");
    }
    let exchange = mint.replace(
        "mode = \"mint\", key = \"k.json\"",
        "mode = \"exchange\", token_endpoint = \"https://idp.example/token\", client_id = \"gateway\", client_secret = \"s.txt\"",
    );
    assert!(read(&exchange).is_ok());
    assert!(read(&exchange.replace("client_id = \"gateway\", ", "")).unwrap_err().contains("client_id"));
    let other = "[[gateway.tokens.issuer]]\nissuer = \"https://other.example\"\njwks = \"o.json\"\n";
    assert!(read(&format!("{mint}{other}")).is_ok());
    assert!(read(&format!("{exchange}{other}")).unwrap_err().contains("name one `[[gateway.tokens.issuer]]`"));
    let bound = mint
        .replace("[[gateway.tokens.issuer]]", "[gateway.tokens]\nrequire_cnf = true\n[[gateway.tokens.issuer]]")
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
fn a_login_at_the_bucket_of_revocations_has_its_secret_in_a_file_of_its_own() {
    let table =
        "revocation = { operator = [], nats = { urls = [\"tls://a\"], user = \"a\", password_file = \"p\" } }\n";
    let good = LEAST.replacen("[gateway]\n", &format!("[gateway]\n{table}"), 1);
    let mut gateway = read(&good).unwrap();
    gateway.relative_to(Path::new("folder"));
    let revocation = gateway.revocation.unwrap();
    assert_eq!(revocation.state.as_deref(), Some(Path::new("folder/gateway.revocation")));
    assert_eq!(revocation.nats.password_file.as_deref(), Some(Path::new("folder/p")));
    let error = read(&good.replacen("password_file = \"p\"", "password = \"p\"", 1)).unwrap_err();
    assert!(error.contains("`nats` of `revocation` has a secret"), "{error}");
}

#[test]
fn one_memory_of_replicas_is_for_what_callers_show_and_no_services() {
    let tables = "\n[[gateway.tokens.issuer]]\nissuer = \"https://idp.example\"\njwks = \"j.json\"\n[[gateway.expose]]";
    let mint = "a.json\"\npublic_url = \"https://gateway.example\"\nidentity = { mode = \"mint\", key = \"k.json\" }\n\
                seal_key = \"k\"\nreplay = { environment = \"prod\", name = \"gateway\", nats = { urls = [\"tls://a\"], \
                user = \"a\", password_file = \"p\" } }\n";
    let good = LEAST.replace("a.json\"\n", mint).replace("[[gateway.expose]]", tables);
    let mut gateway = read(&good).unwrap();
    gateway.relative_to(Path::new("folder"));
    assert_eq!(gateway.replay.unwrap().nats.password_file.as_deref(), Some(Path::new("folder/p")));
    for (from, to, said) in [
        ("seal_key = \"k\"\n", "", "needs a `seal_key`"),
        ("name = \"gateway\"", "name = \"math\"", "`name` of `replay` is `math`, a service"),
        ("name = \"gateway\"", "name = \"a.b\"", "a.b"),
        ("name = \"gateway\"", "x = 1", "unknown field"),
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

/// docs/gateway/README.md, and docs/gateway/configuration.md, which is made of these keys.
#[test]
fn example_of_the_page_is_one_and_every_key_that_is_read_is_described() {
    let page = include_str!("../../../../../docs/gateway/README.md");
    let example = page.split("```toml\n").nth(1).unwrap().split("```").next().unwrap();
    let gateway = read(example).unwrap();
    assert_eq!((gateway.listen.port(), gateway.expose[0].timeout_s), (8480, 30));
    let table = |table: &Table, name: &str| match &table.keys.iter().find(|key| key.name == name).unwrap().kind {
        Kind::Table(table) | Kind::Tables(table) => table.keys.iter().map(|key| key.name).collect::<Vec<_>>(),
        other => panic!("{name}: {other:?}"),
    };
    let file = keys();
    let Kind::Table(gateway) = &file.keys[0].kind else { panic!("{file:?}") };
    let of = |text: String| toml::from_str::<File>(&text).err().unwrap();
    for (wrong, described) in [
        (of(example.replace("[gateway]\n", "[gateway]\nx = 1\n")), table(&file, "gateway")),
        (of(example.replace("timeout_s", "x")), table(gateway, "expose")),
        (of(format!("{example}a2a = {{ x = 1 }}\n")), vec!["description", "native", "text_method", "text_param"]),
        (of(example.replace("[gateway]\n", "[gateway]\nreplicas = { x = 1 }\n")), table(gateway, "replicas")),
        (of(example.replace("[gateway]\n", "[gateway]\nreplay = { x = 1 }\n")), table(gateway, "replay")),
    ] {
        // serde's error messages list all the keys.
        let named: Vec<&str> = wrong.message().split('`').skip(3).step_by(2).collect();
        assert_eq!(named, described, "{wrong}");
    }
}
