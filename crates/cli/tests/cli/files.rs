//! What the command leaves on disk and in memory dumps: nothing that others on the machine can read.
//! Each is run with a umask that grants everything.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::shell::Shell;

/// Runs `sealwire` from a shell whose umask withholds no permission.
fn with_open_umask(shell: &Shell, args: &[&str]) -> Command {
    let mut command = Command::new("/bin/sh");
    command.args(["-c", r#"umask 000; exec "$@""#, "sh", env!("CARGO_BIN_EXE_sealwire")]).args(args);
    command.current_dir(shell.path("home")).env_clear();
    command.env("HOME", shell.path("home")).env("TMPDIR", shell.path("tmp"));
    command.env("PATH", "/usr/bin:/bin").env("SEALWIRE_NATS_SERVER", &sealwire_testkit::found().path);
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Everything below a folder, without following links.
fn below(folder: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    // A folder that has gone meanwhile contains nothing.
    for entry in std::fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            found.extend(below(&path));
        }
        found.push(path);
    }
    found
}

/// Fails if anything grants permissions to group or others. Returns how many files and folders there were.
#[track_caller]
fn none_is_open(folder: &Path) -> usize {
    let found = below(folder);
    for path in &found {
        // A file that has gone meanwhile need not be checked.
        let Ok(metadata) = std::fs::symlink_metadata(path) else { continue };
        let mode = metadata.permissions().mode() & 0o7777;
        assert!(mode & 0o077 == 0, "{} has mode {mode:04o}", path.display());
    }
    found.len()
}

fn shell() -> Shell {
    let shell = Shell::new();
    for folder in ["home", "tmp"] {
        std::fs::create_dir(shell.path(folder)).unwrap();
    }
    shell
}

/// Ends the command, however the test ends.
struct Ended(Child);

impl Drop for Ended {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

#[test]
fn nothing_that_the_development_set_up_writes_is_open_to_others() {
    let shell = shell();
    let mut dev = Ended(with_open_umask(&shell, &["dev"]).spawn().unwrap());
    let mut line = String::new();
    BufReader::new(dev.0.stdout.take().unwrap()).read_line(&mut line).unwrap();
    assert!(line.contains("takes messages"), "{line}");

    let made = none_is_open(&shell.path("home"));
    assert!(made > 20, "only {made} files and folders in the folder of `sealwire dev`");
    let temporary: Vec<String> = below(&shell.path("tmp")).iter().map(|path| path.display().to_string()).collect();
    none_is_open(&shell.path("tmp"));
    assert!(temporary.iter().any(|path| path.ends_with("server.conf")), "{temporary:?}");

    // Nor can its memory be dumped to a file.
    let limits = std::fs::read_to_string(format!("/proc/{}/limits", dev.0.id())).unwrap_or_default();
    if cfg!(target_os = "linux") {
        let core = limits.lines().find(|line| line.starts_with("Max core file size")).unwrap();
        assert_eq!(core.split_whitespace().skip(4).take(2).collect::<Vec<_>>(), ["0", "0"], "{core}");
    }
}

#[test]
fn nothing_that_the_demonstration_writes_is_open_to_others() {
    let shell = shell();
    let mut demo = Ended(with_open_umask(&shell, &["demo"]).stdout(Stdio::null()).spawn().unwrap());
    let mut most = 0;
    // It takes some seconds and removes everything at the end, so check the files meanwhile.
    while demo.0.try_wait().unwrap().is_none() {
        most = most.max(none_is_open(&shell.path("tmp")));
        std::thread::sleep(std::time::Duration::from_millis(20));
    }
    assert!(demo.0.wait().unwrap().success());
    assert!(most > 20, "at most {most} files and folders were seen");
    assert!(below(&shell.path("tmp")).is_empty(), "{:?}", below(&shell.path("tmp")));
}

#[test]
fn nothing_that_the_tools_write_is_open_to_others() {
    let shell = shell();
    let run = |line: &str| {
        let output = with_open_umask(&shell, &line.split(' ').collect::<Vec<_>>()).output().unwrap();
        assert!(output.status.success(), "{line}: {output:?}");
    };
    run("keys new-token-key https://issuer.example");
    run(
        "keys new-agent planner --service dev/math=math.ring.json --url nats://127.0.0.1:4222 --token-file planner.jwt",
    );
    run("keys new-service dev/math");
    run("token issue --key token-key.json --subject planner --audience dev/math --out planner.jwt");
    run("token revoke --sub planner --denylist denylist.json");
    run("keys revoke planner.k1 --ring math.ring.json --denylist denylist.json");
    run("setup cluster --out cluster");
    assert!(none_is_open(&shell.path("home")) > 20);
}

/// Files for everybody get the permissions that the user's own umask allows.
#[test]
fn manual_pages_follow_the_umask() {
    let shell = Shell::new();
    for (umask, folder, file) in [("022", 0o755, 0o644), ("027", 0o750, 0o640), ("077", 0o700, 0o600)] {
        let script = format!(r#"umask {umask}; exec "$0" man man{umask}/man1"#);
        let made = Command::new("/bin/sh")
            .args(["-c", &script, env!("CARGO_BIN_EXE_sealwire")])
            .current_dir(shell.path(""))
            .output()
            .unwrap();
        assert!(made.status.success(), "{made:?}");
        assert_eq!(shell.mode(&format!("man{umask}")), folder);
        assert_eq!(shell.mode(&format!("man{umask}/man1")), folder);
        let pages = below(&shell.path(&format!("man{umask}/man1")));
        assert!(pages.len() > 40, "{pages:?}");
        for page in pages {
            let mode = std::fs::metadata(&page).unwrap().permissions().mode() & 0o7777;
            assert_eq!(mode, file, "{}", page.display());
        }
    }
}

/// Anybody who could put a link there could choose which file becomes readable to everybody.
#[test]
fn manual_pages_go_into_no_folder_of_others() {
    let shell = Shell::new();
    std::fs::create_dir(shell.path("man1")).unwrap();
    let written = || std::fs::read_dir(shell.path("man1")).unwrap().count();
    shell.set_mode("man1", 0o777);
    shell.run("man man1").fails(30, &["can be written by others", "chmod go-w"]);
    shell.run("man man1/inner").fails(30, &["can be written by others"]);
    assert_eq!((written(), shell.mode("man1/inner")), (1, 0o700));
    std::fs::remove_dir(shell.path("man1/inner")).unwrap();
    shell.set_mode("man1", 0o755);
    if std::os::unix::fs::chown(shell.path("man1"), Some(12_345), None).is_ok() {
        shell.run("man man1").fails(30, &["belongs to user 12345"]);
        assert_eq!(written(), 0);
    }
}

#[test]
fn a_replaced_file_keeps_its_readers_and_nobody_else_may_write_it() {
    let shell = shell();
    let revoke = |subject: &str| {
        let args = ["token", "revoke", "--sub", subject, "--denylist", "denylist.json"];
        let output = with_open_umask(&shell, &args).output().unwrap();
        (output.status.success(), shell.mode("home/denylist.json"))
    };
    assert_eq!(revoke("planner"), (true, 0o600));
    for mode in [0o644, 0o640] {
        shell.set_mode("home/denylist.json", mode);
        assert_eq!(revoke("teller"), (true, mode));
    }
    // Files that others may have put into it would count as ours from then on.
    shell.set_mode("home/denylist.json", 0o666);
    let before = shell.read("home/denylist.json");
    assert_eq!(revoke("auditor"), (false, 0o666));
    assert_eq!(shell.read("home/denylist.json"), before);
}

/// A service may read a deny list by its group alone.
#[test]
fn a_replaced_file_keeps_the_group_that_reads_it() {
    use std::os::unix::fs::{MetadataExt as _, chown};
    let shell = Shell::new();
    shell.run("token revoke --sub planner --denylist denylist.json").ok();
    shell.run("keys new-token-key https://issuer.example").ok();
    if chown(shell.path("denylist.json"), None, Some(54_321)).is_err() {
        return; // Only root may give a file to a group that he is not in.
    }
    chown(shell.path("jwks.json"), None, Some(54_321)).unwrap();
    for file in ["denylist.json", "jwks.json"] {
        shell.set_mode(file, 0o640);
    }
    shell.run("token revoke --sub teller --denylist denylist.json").ok();
    shell.run("keys revoke idp-1 --denylist denylist.json").ok();
    shell.run("keys new-token-key https://issuer.example --out next.json").ok();
    for file in ["denylist.json", "jwks.json"] {
        assert_eq!((shell.mode(file), std::fs::metadata(shell.path(file)).unwrap().gid()), (0o640, 54_321), "{file}");
    }

    // If the new file cannot be given to that group, the old one stays.
    for name in ["", "denylist.json"] {
        chown(shell.path(name), Some(12_345), None).unwrap();
    }
    let before = shell.read("denylist.json");
    let revoke = |mode| {
        use std::os::unix::process::CommandExt as _;
        shell.set_mode("denylist.json", mode);
        let args = ["token", "revoke", "--sub", "auditor", "--denylist", "denylist.json"];
        shell.command(&args).uid(12_345).gid(12_345).output()
    };
    let Ok(refused) = revoke(0o640) else { return }; // The program lies where that user may not go.
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(refused.status.code() == Some(30) && said.contains("group 54321") && said.contains("as root"), "{said}");
    assert_eq!(shell.read("denylist.json"), before);
    assert!(revoke(0o644).unwrap().status.success(), "the group may do as much as everybody");
    assert_eq!(shell.mode("denylist.json"), 0o644);
}

/// One word beside `planner.jwt` is the agent's only key.
#[test]
fn an_output_takes_the_place_of_nothing_but_its_own_kind() {
    let shell = Shell::new();
    shell.run("keys new-token-key https://dev.example").ok();
    shell.run("keys new-agent a --service dev/math=ring.json").ok();
    shell.run("keys new-service dev/math").ok();
    shell.write("policies/a.toml", "[role.calc]\nallow = [\"math/add\"]\n[method.\"math/add\"]\n");
    shell.write(
        "sealwire.toml",
        "environment = \"dev\"\nservice = \"math\"\n[nats]\nurls = [\"nats://127.0.0.1:4222\"]\n[keys]\nring = \"ring.json\"\n\
         [[tokens.issuer]]\nissuer = \"https://dev.example\"\njwks = \"jwks.json\"\n[policy]\nfolder = \"policies\"\n",
    );
    let asked = shell.run("keys request robot --environment dev --json").ok().json();
    let enrol = format!(
        "keys enrol robot robot.request --thumbprint {} --service dev/math=ring.json --pin-from math.service-key.json",
        asked["thumbprint"].as_str().unwrap()
    );
    std::os::unix::fs::symlink("ring.json", shell.path("link.json")).unwrap();
    let issue = "token issue --key token-key.json --subject a --audience dev/math --out";
    let all = || {
        let text = |path: PathBuf| std::fs::read_to_string(&path).ok().map(|text| (path, text));
        below(&shell.path("")).into_iter().filter_map(text).collect::<std::collections::BTreeMap<_, _>>()
    };
    let before = all();
    for (line, words) in [
        (&*format!("{issue} token-key.json"), &["`token-key.json`", "holds no token"]),
        (&format!("{issue} a.creds.json"), &["`a.creds.json`", "holds no token"]),
        (&format!("{issue} ./link.json --every 1m"), &["link.json`", "holds no token"]),
        ("keys rotate a.creds.json --ring ring.json --kid-file a.creds.json", &["`a.creds.json`", "no key id of this"]),
        (
            "keys request r2 --environment dev --request r2.creds.json",
            &["`r2.creds.json`", "the credentials and for the request"],
        ),
        ("keys request r2 --environment dev --request ring.json", &["`ring.json` is there", "name another"]),
        (
            "keys new-token-key https://x --out x.json --jwks ./x.json",
            &["x.json`", "the private key and for the key set"],
        ),
        (&format!("{enrol} --out ring.json"), &["`ring.json`", "a key ring and for the enrolment"]),
        (&format!("{enrol} --out a.creds.json"), &["`a.creds.json`", "holds no enrolment"]),
        ("serve demo --state-file sealwire.toml", &["`sealwire.toml`", "no state of an instance"]),
        ("policy matrix --html policies/a.toml", &["`policies/a.toml`", "holds no page"]),
    ] {
        shell.run(line).fails(30, words);
        assert!(all() == before, "{line}");
    }

    // A file of that kind is replaced, and an empty one is filled.
    for (name, text) in
        [("a.jwt", ""), ("a.kid", "a.k1\n"), ("m.html", "<!DOCTYPE html>"), ("robot.enrolment.json", "\n")]
    {
        shell.write(name, text);
    }
    for line in [
        &*format!("{issue} a.jwt"),
        &format!("{issue} a.jwt"),
        "keys rotate a.creds.json --ring ring.json --kid-file a.kid",
        "keys rotate a.creds.json --ring ring.json --kid-file a.kid",
        "policy matrix --html m.html",
        "policy matrix --html m.html",
        &enrol,
    ] {
        shell.run(line).ok();
    }
    assert_eq!(shell.read("a.kid"), "a.k3\n");
}

/// Anybody who may write where a file is expected could keep a command waiting forever.
#[test]
fn a_pipe_in_the_place_of_a_file_keeps_no_command_waiting() {
    let shell = Shell::new();
    shell.write("policies/math.toml", "[role.calc]\nallow = [\"math/*\"]\n[method.\"math/add\"]\n");
    std::fs::create_dir(shell.path("odd")).unwrap();
    for name in ["pipe", "odd/pipe.toml"] {
        assert!(Command::new("mkfifo").args(["-m", "600"]).arg(shell.path(name)).status().unwrap().success());
    }
    shell.run("keys new-token-key https://issuer.example").ok();
    shell.run("keys new-agent planner --service dev/math=math.ring.json").ok();
    for (line, code, words) in [
        ("call --creds pipe math math/add", 30, "`pipe` is no regular file"),
        ("keys list pipe", 30, "`pipe` is no regular file"),
        ("keys grant pipe --service dev/math=math.ring.json", 30, "`pipe` is no regular file"),
        ("keys grant planner.creds.json --service dev/bank=pipe", 30, "`pipe` is no regular file"),
        ("keys accept planner.creds.json pipe", 30, "`pipe` is no regular file"),
        (
            "keys new-agent robot --service dev/bank=bank --user robot --password-file pipe",
            30,
            "`pipe` is no regular file",
        ),
        ("token issue --key pipe --subject planner --audience dev/math", 30, "`pipe` is no regular file"),
        ("token revoke --denylist pipe --sub planner", 30, "`pipe` is no regular file"),
        ("policy explain --token pipe --method math/add", 30, "`pipe` is no regular file"),
        ("policy check odd", 11, "is not a regular file"),
        ("policy fmt odd --check", 11, "is not a regular file"),
        ("serve --config pipe --check", 30, "`pipe` is no regular file"),
    ] {
        let mut child = Ended(shell.command(&line.split(' ').collect::<Vec<_>>()).spawn().unwrap());
        let began = std::time::Instant::now();
        let ended = loop {
            match child.0.try_wait().unwrap() {
                Some(status) => break status,
                None => assert!(began.elapsed() < sealwire_testkit::SOON, "{line}: still waiting"),
            }
            std::thread::sleep(std::time::Duration::from_millis(10));
        };
        let (mut out, mut err) = (child.0.stdout.take().unwrap(), child.0.stderr.take().unwrap());
        let said = std::io::read_to_string(&mut out).unwrap() + &std::io::read_to_string(&mut err).unwrap();
        assert!(ended.code() == Some(code) && said.contains(words), "{line}: {ended}, {said}");
    }
    // A file passed as an open descriptor is intended, whatever it is.
    let key = std::fs::read(shell.path("token-key.json")).unwrap();
    let args = ["token", "issue", "--key", "/dev/stdin", "--subject", "planner", "--audience", "dev/math"];
    assert_eq!(shell.run_with_stdin(&args, &key).ok().stdout.matches('.').count(), 2);
}

/// A full disk, simulated by a limit on file sizes.
#[test]
fn a_file_that_could_not_be_written_is_not_in_the_way() {
    let shell = shell();
    let words = ["keys", "new-agent", "planner", "--service", "dev/math=ring.json"];
    let full = r#"trap '' XFSZ; ulimit -f 0; exec "$@""#;
    let mut command = Command::new("/bin/sh");
    command.args(["-c", full, "sh", env!("CARGO_BIN_EXE_sealwire")]).args(words);
    let output = command.current_dir(shell.path("home")).env_clear().output().unwrap();
    let said = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(30), "{said}");
    assert!(said.contains("File too large"), "{said}");
    assert!(!shell.path("home/planner.creds.json").exists());
    let again = with_open_umask(&shell, &words).output().unwrap();
    assert!(again.status.success(), "{}", String::from_utf8_lossy(&again.stderr));
}

/// docs/files.md, of secrets that Kubernetes mounts: they belong to root and a group.
#[test]
fn a_group_that_the_environment_names_may_read_secrets_and_do_nothing_else() {
    use std::os::unix::fs::MetadataExt as _;
    let shell = Shell::new();
    shell.run("keys new-agent planner --service dev/math=ring.json --url nats://127.0.0.1:4222").ok();
    shell.write(
        "gateway.toml",
        "[gateway]\nlisten = \"127.0.0.1:0\"\ncredentials = \"planner.creds.json\"\n[[gateway.expose]]\nservice = \"math\"\n",
    );
    let group = std::fs::metadata(shell.path("planner.creds.json")).unwrap().gid();
    let check = |groups: &str| {
        let output = shell.command(&["gateway", "--check"]).env("SEALWIRE_SECRET_GROUPS", groups).output().unwrap();
        (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
    };
    for (mode, expected) in [(0o440, 0), (0o640, 0), (0o660, 30), (0o450, 30), (0o444, 30), (0o404, 30)] {
        shell.set_mode("planner.creds.json", mode);
        let (code, said) = check(&format!("1, {group}"));
        assert_eq!(code, Some(expected), "{mode:o}: {said}");
        assert!(expected == 0 || said.contains("chmod 600"), "{mode:o}: {said}");
    }
    shell.set_mode("planner.creds.json", 0o440);
    for (groups, words) in
        [(String::new(), "chmod 600"), ((group + 1).to_string(), "chmod 600"), ("staff".into(), "65532")]
    {
        let (code, said) = check(&groups);
        assert!(code == Some(30) && said.contains(words), "{groups}: {said}");
    }
    // A file that decides is not a secret: whoever could write it is judged as ever.
    shell.set_mode("gateway.toml", 0o666);
    assert_eq!(check(&group.to_string()).0, Some(30));
}
