//! What the crate shows its users: every public name, read from `src/lib.rs`, which re-exports all of them.

use std::collections::BTreeMap;

/// The names by the module that has them; the first stand at the crate's root. A user's program breaks when one of them goes.
const FACE: &[(&str, &str)] = &[
    (
        "",
        "Batch BuildError BusConfig CallStream Caller Client ClientError Clock Config ConfigError Credentials \
         Ctx Decision DecisionRecord Error Explanation Idempotent ManualClock Method MethodName Name Params \
         PolicySet Question RequestBuilder Router RpcError Running ServeError ServeOptions Service \
         ServiceLimits Sink Subscription SystemClock TokenSource Topic WhenFull method",
    ),
    (
        "call",
        "Attachment BatchAnswers BatchCall Catalogue ClientBuilder ClientStats CommandToken FetchedToken \
         FileToken InProcessClient MethodInfo MethodResult NeededApproval PendingApproval Request StaticToken Task TaskMode TaskProgress TaskState TaskStatus",
    ),
    (
        "configure",
        "AgentKey DiscoveryConfig FileTrust GuardKind IssuerConfig KeysConfig LimitsConfig OperatorConfig PolicyConfig PolicySource ProofAlgorithm \
         RecordConfig ReloadConfig ReplayConfig RevocationConfig ServicePublicKey TelemetryConfig TokensConfig",
    ),
    (
        "decide",
        "Approval Budget ConditionExplanation Effect Finding Involved Methods Mode NotApprover Outcome Param ParamType Per \
         PolicyStore PrincipalExplanation PrincipalKind Reach Reason Reload Requester Revision RuleExplanation RuleId ScalarType \
         Severity Shadow ShadowRecord Verdict",
    ),
    (
        "errors",
        "AskError AttachmentError BusError CredentialsError DenylistError EndpointError ErrorKind FrameError \
         HintKind InvalidRequest IssuerFault KeyError KeyFault KeyRingError KeySetError MemberFault NameError \
         NonceLimitsError OpenError OperatorsError OutOfRange PolicyErrors ProtocolError RecordError RevocationError RouterError \
         SecretFileError ServiceKeyError ServiceKeyMissing SharedOpenError StreamLoss TextFault TimeFloorError TokenFault \
         WindowError code",
    ),
    ("metrics", "Registry Report Telemetry TelemetryError"),
    (
        "serve",
        "Attachment AttachmentLimits BudgetCounters Builder Call Condition Counters Delivery Denied Description Ending Health Id \
         Message MethodCounters MethodService OutcomeRecord Outlet ParamList ParamValue Permit Permitted QuotaLimits \
         QuotaScope Ready Recorder RefusedReload Sealed ShadowCounters State StreamLimits TaskLimits TokenFacts WantsMethods \
         WantsPolicy WantsVerifier Watched",
    ),
    ("traces", "Trace TraceOptions TraceOptionsError Tracer Traces"),
];

/// More than this many names at the root are no overview any more.
const AT_THE_ROOT: usize = 40;

#[test]
fn public_names_are_those_of_the_list() {
    let shown = names(include_str!("../../src/lib.rs"));
    let listed: BTreeMap<_, Vec<_>> =
        FACE.iter().map(|(module, names)| ((*module).to_owned(), names.split_whitespace().collect())).collect();
    for (module, names) in &shown {
        assert_eq!(names.join(" "), listed.get(module).map(|names| names.join(" ")).unwrap_or_default(), "`{module}`");
    }
    assert_eq!(shown.keys().collect::<Vec<_>>(), listed.keys().collect::<Vec<_>>());
    assert!(listed[""].len() <= AT_THE_ROOT, "{}", listed[""].len());
}

#[test]
fn public_name_has_one_path() {
    let shown = names(include_str!("../../src/lib.rs"));
    let all: Vec<_> = shown.into_values().flatten().collect();
    assert_eq!(all.iter().filter(|one| *one == "Attachment").count(), 2, "one for callers and one for services");
    let twice = |name: &&String| *name != "Attachment" && all.iter().filter(|one| one == name).count() > 1;
    assert_eq!(all.iter().find(twice), None);
}

/// The re-exported names of each public module, in order, without the hidden module `internal`.
fn names(source: &str) -> BTreeMap<String, Vec<String>> {
    let lines = source.lines().map(str::trim).filter(|line| !line.starts_with("//") && !line.starts_with("#["));
    let code = lines.collect::<Vec<_>>().join(" ");
    let code = code.split("pub mod internal").next().unwrap();
    let mut found = BTreeMap::<String, Vec<String>>::new();
    let mut module = String::new();
    for statement in code.split(';') {
        let mut statement = statement.trim();
        if let Some(rest) = statement.strip_prefix('}') {
            module.clear();
            statement = rest.trim();
        }
        if let Some((name, rest)) = statement.strip_prefix("pub mod ").and_then(|rest| rest.split_once('{')) {
            module = name.trim().to_owned();
            statement = rest.trim();
        }
        let Some(path) = statement.strip_prefix("pub use ") else { continue };
        let list = path.rsplit("::").next().unwrap().trim_matches(['{', '}', ' ']);
        let names = list.split(',').map(|name| name.trim().to_owned()).filter(|name| !name.is_empty());
        found.entry(module.clone()).or_default().extend(names);
    }
    found.values_mut().for_each(|names| names.sort());
    found
}
