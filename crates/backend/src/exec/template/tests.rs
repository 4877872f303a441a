#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;
use crate::arguments::LONGEST;

/// A command line with the text `p` and the integer `n`; whether `p` may be an argument.
fn line(words: &[&str], is_allowed: bool) -> Result<Template, String> {
    let params = [Param::string("p"), Param::integer("n")];
    let args: Vec<String> = words.iter().skip(1).map(ToString::to_string).collect();
    let allowed = if is_allowed { BTreeSet::from(["p"]) } else { BTreeSet::new() };
    Template::read(&args, &params, &allowed, true)
}

fn filled(args: &[&str], params: &str) -> Result<Vec<OsString>, String> {
    let declared = [Param::string("a"), Param::integer("n").optional(), Param::boolean("b").optional()];
    let args: Vec<String> = args.iter().map(ToString::to_string).collect();
    Template::read(&args, &declared, &BTreeSet::from(["a"]), true)?
        .fill(Some(&RawValue::from_string(params.to_owned()).unwrap()))
}

// Each of these runs the text, or something that the text names, or reads it as an option. None is known by its name.
const CODE: [&[&str]; 60] = [
    &["sh", "-c", "{p}"],
    &["bash-static", "-c", "{p}"],
    &["sh", "-c", "echo \"$1\"", "sh", "{p}"],
    &["sh", "script.sh", "{p}"],
    &["sh", "--", "{p}"],
    &["sh", "{p}"],
    &["busybox", "sh", "-c", "{p}"],
    &["env", "-S", "sh -c {p}"],
    &["env", "-S", "{p}"],
    &["env", "--split-string={p}"],
    &["env", "{p}"],
    &["env", "--", "{p}"],
    &["env", "LD_PRELOAD={p}", "true"],
    &["nice", "--", "sh", "-c", "{p}"],
    &["find", ".", "-exec", "sh", "-c", "{p}", ";"],
    &["find", "{p}", "-delete"],
    &["su", "-c", "{p}"],
    &["runuser", "-u", "x", "--", "sh", "-c", "{p}"],
    &["bwrap", "sh", "-c", "{p}"],
    &["firejail", "{p}"],
    &["tini", "--", "{p}"],
    &["script", "-c", "{p}", "/dev/null"],
    &["parallel", "{p}", ":::", "x"],
    &["xargs", "-a", "list", "sh", "-c", "{p}"],
    &["ssh", "host", "{p}"],
    &["ssh", "-o", "ProxyCommand={p}", "host"],
    &["ssh", "{p}"],
    &["scp", "-S", "{p}", "a", "b:"],
    &["rsync", "-e", "{p}", "a", "b:"],
    &["rsync", "--rsh={p}", "a", "b:"],
    &["tar", "-xf", "a.tar", "--to-command={p}"],
    &["tar", "-cf", "{p}", "."],
    &["git", "-c", "core.pager={p}", "log"],
    &["git", "-c", "{p}", "log"],
    &["git", "clone", "{p}"],
    &["git", "log", "{p}"],
    &["vim", "-c", "{p}"],
    &["emacs", "--batch", "--eval={p}"],
    &["gdb", "-ex", "{p}"],
    &["make", "{p}"],
    &["man", "-P", "{p}", "ls"],
    &["less", "{p}"],
    &["zip", "-TT", "{p}", "a.zip", "b"],
    &["perl", "-ne", "print", "{p}"],
    &["perl", "-ne", "print", "--", "{p}"],
    &["awk", "{p}"],
    &["awk", "--", "{p}"],
    &["awk", "-v", "x={p}", "{{print x}}"],
    &["sed", "-n", "s/{p}/x/"],
    &["sed", "-e", "{p}"],
    &["python3", "-c", "{p}"],
    &["python3", "-m", "{p}"],
    &["node", "--require={p}", "x.js"],
    &["psql", "-c", "select '{p}'"],
    &["sqlite3", "a.db", "{p}"],
    &["curl", "-o", "out", "{p}"],
    &["docker", "run", "{p}"],
    &["systemd-run", "{p}"],
    &["date", "--date={p}"],
    &["grep", "-F", "--", "{p}", "file"],
];

#[test]
fn no_text_is_an_argument_without_the_operators_word_whatever_the_command() {
    for words in CODE {
        let error = line(words, false).unwrap_err();
        assert!(error.contains("`p` is a text") && error.contains("standard input"), "{words:?}: {error}");
        assert!(error.contains("allow_argument = true"), "{words:?}: {error}");
    }
    // What cannot be code may be anywhere.
    for words in [["head", "-n", "{n}"].as_slice(), &["sed", "-n", "{n}p"], &["sh", "-c", "sleep {n}"], &["cat"]] {
        assert!(line(words, false).is_ok(), "{words:?}");
    }
}

#[test]
fn a_text_with_the_word_is_one_whole_argument_or_the_value_of_a_name() {
    for words in [
        ["grep", "-F", "--", "{p}", "file"].as_slice(),
        &["date", "--date={p}"],
        &["dig", "{p}"],
        &["env", "A={p}", "python3", "tool.py"],
        &["awk", "-v", "city={p}", "$1 == city"],
        &["sh", "-c", "echo \"$1\"", "sh", "{p}"],
        &["grep", "-e", "{p}", "sh"],
        &["x", "-o={p}", "--a.b-c_d={p}"],
    ] {
        assert!(line(words, true).is_ok(), "{words:?}");
    }
    for words in [
        ["sh", "-c", "echo {p}"].as_slice(),
        &["env", "-S", "sh -c {p}"],
        &["sh", "-c", "X={p}; true"],
        &["sh", "scripts/{p}.sh"],
        &["awk", "/{p}/"],
        &["psql", "-c", "select '{p}'"],
        &["x", "{p}{p}"],
        &["x", "{n}{p}"],
        &["x", "{p}{n}"],
        &["x", "a b={p}"],
        &["x", "={p}"],
        &["x", "--={p}"],
        &["x", "{{{p}}}"],
        &["x", "-o{p}"],
    ] {
        let error = line(words, true).unwrap_err();
        assert!(error.contains("only a part of an argument"), "{words:?}: {error}");
    }
}

#[test]
fn what_no_argument_has_is_read_by_the_operators_word_alone() {
    let of = |args: &[&str], reads: bool| {
        let params = [Param::integer("n"), Param::string("p").optional()];
        let args: Vec<String> = args.iter().map(ToString::to_string).collect();
        Template::read(&args, &params, &BTreeSet::from(["p"]), reads)
    };
    for args in [[].as_slice(), &["{n}"], &["{p}"], &["x", "--", "{p}"]] {
        let error = of(args, false).unwrap_err();
        assert!(
            error.contains("does not reach the command") && error.contains("`stdin = \"data\"`"),
            "{args:?}: {error}"
        );
        assert!(of(args, true).is_ok(), "{args:?}");
    }
    assert!(of(&["{n}", "{p}"], false).is_ok());
}

#[test]
fn arguments_are_made_of_declared_parameters_of_their_types_alone() {
    assert_eq!(filled(&["x", "--a={a}", "{n}{b}"], r#"{"a": "-x $(y)", "n": 5}"#).unwrap(), ["x", "--a=-x $(y)"]);
    assert_eq!(filled(&["{{{n}}}", "n{n}", "{a}"], r#"["y", -7]"#).unwrap(), ["{-7}", "n-7", "y"]);
    for wrong in [r#"{"a": 5}"#, r#"{"n": 5}"#, r#"{"a": "", "n": 1.5}"#, r#"{"a": "", "c": 1}"#, r#"["", 1, true, 4]"#]
    {
        assert!(filled(&["{a}"], wrong).is_err(), "{wrong}");
    }
    let long = format!("[\"{}\"]", "x".repeat(LONGEST + 1));
    assert!(filled(&["{a}"], &long).is_err() && filled(&["{a}"], r#"["a\u0000b"]"#).is_err());
    let (args, optional) = (["-n".to_owned(), "{n}".to_owned()], [Param::integer("n").optional()]);
    assert!(Template::read(&args, &optional, &BTreeSet::new(), true).is_err());
    for template in ["{c}", "{a", "}", "{}"] {
        assert!(filled(&[template], r#"["x"]"#).is_err(), "{template}");
    }
}

#[test]
fn no_parameter_becomes_an_option() {
    for dashed in [r#"["-x"]"#, r#"["--"]"#] {
        assert!(filled(&["{a}"], dashed).is_err());
        assert!(filled(&["{a}", "--"], dashed).is_err());
        assert!(filled(&["--", "{a}"], dashed).is_ok());
        assert!(filled(&["--a={a}"], dashed).is_ok());
    }
    assert!(filled(&["{n}"], r#"["x", -5]"#).is_err());
    // An omitted parameter in front does not let the value slip through.
    assert!(filled(&["{b}{n}"], r#"["x", -5]"#).unwrap().is_empty());
}
