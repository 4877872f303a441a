//! Files as editors, shells and other systems leave them: with a byte-order mark, with other line ends, in UTF-16. For every kind of file
//! that a command reads.

use crate::shell::Shell;

/// A way to write a text.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Form {
    Plain,
    Mark,
    CrLf,
    MarkAndCrLf,
    /// Line ends of CR alone, which TOML does not have (TOML 1.0: a newline is LF or CRLF).
    Cr,
    /// With a byte-order mark, in either order, and without one.
    Utf16Le,
    Utf16Be,
    Utf16Bare,
    /// One byte that is not UTF-8, in front.
    Latin1,
}

impl Form {
    const ALL: [Self; 9] = [
        Self::Plain,
        Self::Mark,
        Self::CrLf,
        Self::MarkAndCrLf,
        Self::Cr,
        Self::Utf16Le,
        Self::Utf16Be,
        Self::Utf16Bare,
        Self::Latin1,
    ];

    fn of(self, text: &str) -> Vec<u8> {
        let units = |order: fn(u16) -> [u8; 2]| text.encode_utf16().flat_map(order).collect::<Vec<u8>>();
        let mark = b"\xEF\xBB\xBF".as_slice();
        match self {
            Self::Plain => text.into(),
            Self::Mark => [mark, text.as_bytes()].concat(),
            Self::CrLf => text.replace('\n', "\r\n").into(),
            Self::MarkAndCrLf => [mark, text.replace('\n', "\r\n").as_bytes()].concat(),
            Self::Cr => text.replace('\n', "\r").into(),
            Self::Utf16Le => [&b"\xff\xfe"[..], &units(u16::to_le_bytes)].concat(),
            Self::Utf16Be => [&b"\xfe\xff"[..], &units(u16::to_be_bytes)].concat(),
            Self::Utf16Bare => units(u16::to_le_bytes),
            Self::Latin1 => [b"\xe4", text.as_bytes()].concat(),
        }
    }

    /// The word that says what is wrong with it; `None` if nothing is.
    fn fault(self, is_toml: bool) -> Option<&'static str> {
        match self {
            Self::Plain | Self::Mark | Self::CrLf | Self::MarkAndCrLf => None,
            Self::Cr => is_toml.then_some("line"),
            Self::Utf16Le | Self::Utf16Be | Self::Utf16Bare => Some("UTF-16"),
            Self::Latin1 => Some("UTF-8"),
        }
    }
}

#[test]
fn a_file_is_read_whatever_editor_saved_it_and_what_cannot_be_read_is_named() {
    let shell = Shell::new();
    shell.run("init . --url nats://127.0.0.1:1 --language stdio").ok();
    shell.run("keys request robot --environment dev").ok();
    let thumbprint = shell.run("keys request other --environment dev --json").ok().json()["thumbprint"].clone();
    let thumbprint = thumbprint.as_str().unwrap();
    let token =
        shell.run("token issue --key token-key.json --subject planner --audience dev/math --role calculator").ok();
    shell.write("planner.jwt", &token.stdout);
    shell.write("planner.key", "planner.k1\n");
    shell.write("gateway.toml", "[gateway]\nlisten = \"127.0.0.1:0\"\ncredentials = \"planner.creds.json\"\n\n[[gateway.expose]]\nservice = \"math\"\n");
    shell.run("keys enrol other other.request --service dev/math=enrolled.json --pin-from service-key.json --thumbprint THUMBPRINT".replace("THUMBPRINT", thumbprint).as_str()).ok();
    let enrol = format!(
        "keys enrol other other.request --service dev/math=new.json --out new.enrolment.json --pin-from service-key.json --thumbprint {thumbprint}"
    );
    let call = "call math math/add [2,3] --creds planner.creds.json";
    let check = "serve --check";
    // The file, how to have it read, and how that ends if it is fine: there is no broker.
    for (file, line, code) in [
        ("sealwire.toml", check, 0),
        ("ring.json", check, 0),
        ("service-key.json", check, 0),
        ("jwks.json", check, 0),
        ("denylist.json", check, 0),
        ("policies/math.toml", "policy check", 0),
        ("token-key.json", "token issue --key token-key.json --subject planner --audience dev/math", 0),
        ("planner.creds.json", call, 20),
        ("planner.jwt", "policy explain --token planner.jwt --method math/add", 0),
        (
            "planner.key",
            "token issue --key token-key.json --subject planner --audience dev/math --cnf-kid-file planner.key",
            0,
        ),
        ("ring.json", "keys list ring.json", 0),
        ("other.request", enrol.as_str(), 0),
        ("other.enrolment.json", "keys accept other.creds.json other.enrolment.json", 0),
        ("gateway.toml", "gateway --check --config gateway.toml", 0),
    ] {
        let path = shell.path(file);
        let (text, mode) = (shell.read(file), shell.mode(file));
        for form in Form::ALL {
            std::fs::write(&path, form.of(&text)).unwrap();
            shell.set_mode(file, mode);
            for made in ["new.json", "new.enrolment.json"] {
                drop(std::fs::remove_file(shell.path(made)));
            }
            let ran = shell.run(line);
            match form.fault(file.ends_with(".toml")) {
                None => assert_eq!(ran.code, code, "{file} as {form:?}: {ran:?}"),
                Some(word) => {
                    // The loader of policies has a word of its own, and its parser's for what could be text with odd characters.
                    let word = match form {
                        Form::Utf16Bare if file.starts_with("policies/") => "expected printable characters",
                        Form::Utf16Le | Form::Utf16Be if file.starts_with("policies/") => "save it as UTF-8",
                        _ => word,
                    };
                    let said = format!("{}{}", ran.stdout, ran.stderr);
                    assert!(matches!(ran.code, 11 | 30), "{file} as {form:?}: {ran:?}");
                    assert!(
                        said.contains(word) && said.contains(file.rsplit('/').next().unwrap()),
                        "{file} as {form:?}: {ran:?}"
                    );
                }
            }
        }
        std::fs::write(&path, text).unwrap();
        shell.set_mode(file, mode);
    }
}

/// What people have lying next to each other.
#[test]
fn a_file_of_another_kind_is_called_by_its_name() {
    let shell = Shell::new();
    shell.run("init . --url nats://127.0.0.1:1 --language stdio").ok();
    let token = shell.run("token issue --key token-key.json --subject planner --audience dev/math").ok().stdout;
    let nats = "-----BEGIN NATS USER JWT-----\neyJ0eXAiOiJKV1QiLCJhbGciOiJlZDI1NTE5LW5rZXkifQ.eyJqdGkiOiJBIn0.c2ln\n------END NATS USER JWT------\n\n\
        ************************* IMPORTANT *************************\n-----BEGIN USER NKEY SEED-----\n\
        SUAOEXAMPLEEXAMPLEEXAMPLEEXAMPLEEXAMPLEEXAMPLEEXAMPLEEXAMP\n------END USER NKEY SEED------\n";
    let seed = "SUAOEXAMPLEEXAMPLEEXAMPLEEXAMPLEEXAMPLEEXAMPLEEXAMPLEEXAMP\n";
    let call = "call math math/add [2,3] --creds x.json";
    for (text, line, words) in [
        (nats, call, &["`.creds` file of NATS", "sealwire keys new-agent"][..]),
        (nats, "keys list x.json", &["is not a key ring", "sealwire keys new-agent"]),
        (seed, call, &["nkey seed of NATS", "nkey_seed_file"]),
        (token.as_str(), call, &["an access token", "token_file"]),
        ("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n", call, &["PEM"]),
        ("<html></html>", call, &["a web page"]),
        ("", call, &["ends too early"]),
        ("\n", call, &["ends too early"]),
        ("not json", call, &["not JSON"]),
    ] {
        shell.write("x.json", text);
        shell.set_mode("x.json", 0o600);
        let ran = shell.run(line).fails(30, words);
        assert!(!ran.stderr.contains("EXAMPLE") && !ran.stderr.contains(token.trim()), "{ran:?}");
    }
    // In the place of the service's own files.
    for (file, words) in [
        ("ring.json", &["is not a key ring", "`.creds` file of NATS"][..]),
        ("service-key.json", &["is not a service key", "`.creds` file of NATS"]),
    ] {
        let good = shell.read(file);
        shell.write(file, nats);
        shell.run("serve --check").fails(30, words);
        shell.write(file, &good);
    }
    // The seed of the broker's user, in the service's configuration.
    let config = shell.read("sealwire.toml");
    shell.write("user.creds", nats);
    shell.write("user.nk", "SUNOSEED\n");
    for file in ["user.creds", "user.nk", "sealwire.toml"] {
        shell.set_mode(file, 0o600);
    }
    for (member, words) in [
        ("nkey_seed = \"SUNOSEED\"", &["`nkey_seed`", "nkey seed of a user", "SU"][..]),
        ("nkey_seed = \"\"", &["`nkey_seed`", "nkey seed of a user"]),
        ("nkey_seed_file = \"user.nk\"", &["`nkey_seed_file`", "nkey seed of a user"]),
        ("nkey_seed_file = \"user.creds\"", &["`nkey_seed_file`", "`.creds` file of NATS", "name it in `creds_file`"]),
        ("creds_file = \"user.creds\"", &["`creds_file`", "damaged JWT", "generate the file again"]),
        ("creds_file = \"user.nk\"", &["`creds_file`", "holds no JWT"]),
        ("creds_file = \"none.creds\"", &["`creds_file`", "a file that is not there"]),
        ("nkey_seed_file = \"none.nk\"", &["`nkey_seed_file`", "a file that is not there"]),
    ] {
        shell.write("sealwire.toml", &config.replace("[nats]\n", &format!("[nats]\n{member}\n")));
        shell.set_mode("sealwire.toml", 0o600);
        let ran = shell.run("serve --check").fails(30, words);
        assert!(!ran.stderr.contains("SUNOSEED") && !ran.stderr.contains("EXAMPLE"), "{ran:?}");
    }
}
