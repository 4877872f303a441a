//! The keys of `[[backend]]`.

use serde_json::json;

use super::key::Kind::{Choice, Flag, List, Name, Number, Path, Tables, Text, Texts};
use super::key::{Key, LeftOut, Table};
use crate::config::{BackendConfig, BackendCredentialConfig};

pub(super) fn backend() -> Vec<Key> {
    let texts = || List(Box::new(Text), 0);
    vec![
        Key::required("name", Name, "What it is called in the log."),
        Key::required(
            "kind",
            Choice(&["stdio", "mcp", "exec", "http"]),
            "What it speaks: a JSON-RPC object a line (`stdio`), the Model Context Protocol over the same or over HTTP (`mcp`), nothing: a command for each call (`exec`), or HTTP: a request for each call (`http`).",
        ),
        Key::value(
            "command",
            texts(),
            json!([]),
            "The program and its arguments. Each is handed over as it is: no shell reads them. Of `exec`, the beginning of each method's command.",
        ),
        Key::none(
            "prefix",
            Text,
            "nothing",
            "What the names of all methods of an `mcp` server begin with, before a `/`.",
        ),
        Key::none(
            "url",
            Text,
            "it is a program",
            "Where a server is that is asked over HTTP: `https://…`, or `http://…` of this machine (a loopback address or `localhost`). For kinds that take it.",
        ),
        Key::value(
            "allow_plaintext",
            Flag,
            false,
            "Whether `url` may be `http://…` of another machine. Whoever is on the way can then read and change everything, credentials included.",
        ),
        Key::none(
            "tls_ca",
            Path,
            "those of the system",
            "Trust anchors of the server at `url`, a PEM file. Read at the start.",
        ),
        Key::value(
            "headers",
            Texts,
            json!({}),
            "Header fields of every request to `url`. No secrets: those are for `credential`.",
        ),
        Key::new(
            "credential",
            Tables(Table {
                about: "A header field with a secret, of every request to `url`. Exactly one of `file`, `folder` and `command` says where the secret comes from. It is never the caller's token.",
                keys: credential(),
            }),
            LeftOut::Means("there is none"),
            "",
        ),
        Key::none("dir", Path, "that of this file", "The folder that its processes run in."),
        Key::value(
            "env",
            Texts,
            json!({}),
            "Its environment beside `PATH`, `HOME` and `LANG`. A secret does better in a file that the program reads, or in `pass_env`.",
        ),
        Key::value("pass_env", texts(), json!([]), "Variables of the service's own environment that it gets as well."),
        Key::value(
            "processes",
            Number("processes", 1, Some(64)),
            BackendConfig::PROCESSES,
            "How many processes of a `stdio` program share the calls.",
        ),
        Key::value(
            "in_flight",
            Number("calls", 1, Some(1024)),
            BackendConfig::IN_FLIGHT,
            "The most calls under way at a time. Further ones wait; agents take turns, and one alone gets half.",
        ),
        Key::value(
            "timeout_s",
            Number("seconds", 1, Some(3600)),
            BackendConfig::TIMEOUT_S,
            "How long a call may take. A caller's own deadline may be nearer.",
        ),
        Key::value(
            "memory_mib",
            Number("MiB", 64, Some(1 << 20)),
            BackendConfig::MEMORY_MIB,
            "The memory of each process (`RLIMIT_DATA`).",
        ),
        Key::value(
            "open_files",
            Number("files", 32, Some(65_536)),
            BackendConfig::OPEN_FILES,
            "The open files of each process (`RLIMIT_NOFILE`).",
        ),
        Key::value(
            "send_caller",
            Flag,
            false,
            "Whether requests say who calls, `{\"agent\": …, \"subject\": …}`: those of `stdio` as the member `caller`, those of `mcp` in `_meta` as `dev.sealwire/caller`. Never the token.",
        ),
        Key::value(
            "batch",
            Flag,
            false,
            "Of `http`: whether calls of one caller that come within 5 ms go to the server in one `POST`, as a batch of JSON-RPC 2.0: 32 of them and 1 MiB at most.",
        ),
        Key::none(
            "health",
            Text,
            "it is there while connections to it can be made",
            "Of `http`: a path at `url`'s origin, such as `/livez`, that answers with a status of success while the server is there. Asked every 10 s, and before calls are made again.",
        ),
        Key::new(
            "method",
            Tables(Table { about: "A method that the backend offers.", keys: method() }),
            LeftOut::Means("it offers none"),
            "",
        ),
    ]
}

fn credential() -> Vec<Key> {
    vec![
        Key::none("header", Text, "`\"Authorization\"`", "The name of the field."),
        Key::none("scheme", Text, "nothing", "What stands before the secret, and a blank: `Bearer`."),
        Key::none(
            "file",
            Path,
            "it comes from elsewhere",
            "A file with the secret on one line, for its owner alone (mode 0600). Read again when it changes.",
        ),
        Key::none(
            "folder",
            Path,
            "it comes from elsewhere",
            "A folder with such a file for each agent or subject, under its name: letters, digits, `@ _ + -` and inner dots as they are, any other byte as `%2F`. Who has no file there cannot call.",
        ),
        Key::value(
            "command",
            List(Box::new(Text), 0),
            json!([]),
            "A command that prints the secret on one line, within 10 s. No shell runs it. It has `env` and `pass_env`, and of a caller's own secret `SEALWIRE_AGENT` or `SEALWIRE_SUBJECT`. Run again when the server answers 401.",
        ),
        Key::value(
            "owner",
            Choice(&["service", "agent", "subject"]),
            "service",
            "Whose it is: the same for all calls, or the calling agent's, or that of the subject on whose behalf the agent calls.",
        ),
        Key::value(
            "keep_s",
            Number("seconds", 1, Some(86_400)),
            BackendCredentialConfig::KEEP_S,
            "How long what a command has printed is used.",
        ),
    ]
}

fn method() -> Vec<Key> {
    vec![
        Key::required("name", Text, "The method on the bus, such as `clock/now`."),
        Key::none("tool", Text, "the same name", "What the backend itself calls it."),
        Key::none("description", Text, "nothing", "A line about it."),
        Key::value(
            "push",
            Flag,
            false,
            "Whether it is something to listen to: notifications of this name that a `stdio` program sends.",
        ),
        Key::none(
            "args",
            List(Box::new(Text), 0),
            "none",
            "Of `exec`: what follows on the backend's `command`. `{name}` stands for a declared parameter that is a string, an integer or a boolean; a brace is written twice.",
        ),
        Key::none(
            "output",
            Choice(&["json", "text"]),
            "`\"json\"`",
            "Of `exec`, and of `http` with a request of its own: what the answer is, JSON or a text. It is the result.",
        ),
        Key::none(
            "stream",
            Text,
            "a POST to `url`",
            "Of `http`: the path of a GET that has the JSON-RPC request in its query (`method`, `params`, `id`), and is answered by a stream of events whose data are parts, until `[DONE]`.",
        ),
        Key::table(
            "http",
            "it is JSON-RPC",
            "Of `http`: a plain request in place of JSON-RPC. `{name}` stands for a declared parameter that is a string, an integer or a boolean; a brace is written twice.",
            vec![
                Key::value("verb", Choice(&["GET", "POST", "PUT", "PATCH", "DELETE"]), "GET", "The request method."),
                Key::required(
                    "path",
                    Text,
                    "The whole path at `url`'s origin, such as `/weather/{city}`. A parameter there can be no more than a part between two slashes.",
                ),
                Key::value(
                    "query",
                    Texts,
                    json!({}),
                    "The query: values by names. One with an optional parameter that the call leaves out is left out.",
                ),
                Key::value("headers", Texts, json!({}), "Header fields: values by names, as in `query`."),
                Key::none(
                    "body",
                    Text,
                    "nothing",
                    "The body: a JSON text in which `{name}` stands for the whole value of a parameter of any type, such as `{\"city\": {city}, \"days\": 3}`; `null` for one that the call leaves out.",
                ),
            ],
        ),
        Key::new(
            "params",
            Tables(Table {
                about: "A parameter, for rules on arguments; in the order of the positions. As policy files declare them (docs/policies.md).",
                keys: vec![
                    Key::required("name", Text, "Its name in a call with named parameters."),
                    Key::required(
                        "type",
                        Choice(&[
                            "string",
                            "integer",
                            "boolean",
                            "number",
                            "any",
                            "string[]",
                            "integer[]",
                            "boolean[]",
                        ]),
                        "Its type.",
                    ),
                    Key::value("optional", Flag, false, "Whether a call may leave it out or send `null`."),
                ],
            }),
            LeftOut::Means("rules on its arguments need them in the policy"),
            "",
        ),
    ]
}
