#![allow(clippy::unwrap_used, reason = "tests")]
use super::*;

fn options(wanted: &WantedTraces<'_>, variables: &[(&str, &str)]) -> Result<Option<TraceOptions>, TraceOptionsError> {
    let variables =
        |name: &str| variables.iter().find(|(other, _)| *other == name).map(|(_, value)| (*value).to_owned());
    TraceOptions::new(wanted, &variables, &|path| Err(format!("`{path}` is not there")))
}

fn here() -> WantedTraces<'static> {
    WantedTraces { endpoint: Some("http://127.0.0.1:4318/"), ..WantedTraces::default() }
}

/// docs/observability.md.
#[test]
fn variables_have_priority_and_nothing_is_sent_unless_somewhere_is_named() {
    let target = |wanted: &WantedTraces<'_>, variables: &[(&str, &str)]| {
        options(wanted, variables).unwrap().map(|options| format!("{}{}", options.address, options.address.port))
    };
    let none = WantedTraces::default();
    assert_eq!(target(&none, &[]), None);
    assert_eq!(target(&none, &[("OTEL_BSP_SCHEDULE_DELAY", "soon")]), None, "not for us");
    assert_eq!(target(&here(), &[]).unwrap(), "http://127.0.0.1:4318/v1/traces4318");
    let base = ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://localhost:1/x");
    assert_eq!(target(&none, &[base]).unwrap(), "http://localhost:1/x/v1/traces1");
    assert_eq!(target(&here(), &[base]).unwrap(), "http://localhost:1/x/v1/traces1");
    let whole = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "http://localhost:2/spans");
    assert_eq!(target(&here(), &[base, whole]).unwrap(), "http://localhost:2/spans2");
    for off in [("OTEL_SDK_DISABLED", "True"), ("OTEL_TRACES_EXPORTER", "none")] {
        assert_eq!(target(&here(), &[off]), None, "{off:?}");
    }
    let all = [
        ("OTEL_BSP_SCHEDULE_DELAY", "100"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "7"),
        ("OTEL_BSP_MAX_EXPORT_BATCH_SIZE", "3"),
        ("OTEL_BSP_EXPORT_TIMEOUT", "9"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "8"),
    ];
    let found = options(&here(), &all).unwrap().unwrap();
    assert_eq!((found.queue, found.batch, found.delay.as_millis(), found.timeout.as_millis()), (7, 3, 100, 8));
    let usual = options(&here(), &[]).unwrap().unwrap();
    assert_eq!((usual.queue, usual.batch, usual.delay, usual.timeout), (MAX_QUEUE, MAX_BATCH, DELAY, TIMEOUT));
}

#[test]
fn what_is_wrong_is_told_with_the_name_of_its_variable() {
    for (name, value) in [
        ("OTEL_TRACES_EXPORTER", "jaeger"),
        ("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc"),
        ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "http/json"),
        ("OTEL_TRACES_SAMPLER", "xray"),
        ("OTEL_EXPORTER_OTLP_TIMEOUT", "10s"),
        ("OTEL_BSP_MAX_QUEUE_SIZE", "0"),
        ("OTEL_EXPORTER_OTLP_HEADERS", "hunter2"),
        ("OTEL_RESOURCE_ATTRIBUTES", "a"),
    ] {
        let error = options(&here(), &[(name, value)]).unwrap_err().to_string();
        assert!(error.contains(name), "{error}");
    }
    let ratio = [("OTEL_TRACES_SAMPLER", "traceidratio"), ("OTEL_TRACES_SAMPLER_ARG", "2")];
    assert!(options(&here(), &ratio).unwrap_err().to_string().contains("OTEL_TRACES_SAMPLER_ARG"));
    let secure = WantedTraces { endpoint: Some("https://127.0.0.1"), ..WantedTraces::default() };
    let anchors = options(&secure, &[("OTEL_EXPORTER_OTLP_CERTIFICATE", "ca.pem")]).unwrap_err().to_string();
    assert!(anchors.contains("OTEL_EXPORTER_OTLP_CERTIFICATE") && anchors.contains("ca.pem"), "{anchors}");
}

#[test]
fn spans_go_unencrypted_to_another_machine_only_if_that_is_allowed() {
    let there = WantedTraces { endpoint: Some("http://collector:4318"), ..WantedTraces::default() };
    let error = options(&there, &[]).unwrap_err().to_string();
    assert!(error.contains("otlp_allow_plaintext = true"), "{error}");
    assert!(options(&WantedTraces { allow_plaintext: true, ..there.clone() }, &[]).unwrap().is_some());
    assert!(options(&there, &[("OTEL_EXPORTER_OTLP_INSECURE", "true")]).unwrap().is_some());
    let user = WantedTraces { endpoint: Some("https://me:hunter2@collector"), ..WantedTraces::default() };
    let error = options(&user, &[]).unwrap_err();
    assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
}

#[test]
fn headers_are_read_from_the_file_or_the_variable_and_never_shown() {
    let with = |headers| WantedTraces { headers: Some(headers), ..here() };
    let read = |wanted: &WantedTraces<'_>, variables: &[(&str, &str)]| {
        options(wanted, variables).map(|options| {
            let options = options.unwrap();
            assert!(!format!("{options:?}").contains("hunter2"));
            let pairs = options.headers.iter().map(|(name, value)| format!("{name}={}", value.to_str().unwrap()));
            pairs.collect::<Vec<_>>()
        })
    };
    let file = with("Authorization: Basic hunter2\n\n x-tenant:a:b \n");
    assert_eq!(read(&file, &[]).unwrap(), ["authorization=Basic hunter2", "x-tenant=a:b"]);
    let variable = [("OTEL_EXPORTER_OTLP_HEADERS", "authorization=Bearer%20hunter2")];
    assert_eq!(read(&file, &variable).unwrap(), ["authorization=Bearer hunter2"]);
    for wrong in ["hunter2", "a b: hunter2", ": hunter2", "x: hunter2\u{7f}", "Host: hunter2", "content-length: 0"] {
        let error = read(&with(wrong), &[]).unwrap_err();
        assert!(!format!("{error} {error:?}").contains("hunter2"), "{error}");
    }
}

#[test]
fn resource_names_the_program_and_what_the_operator_says() {
    let wanted = WantedTraces { service: "math", namespace: Some("prod"), ..here() };
    let value = |variables: &[(&str, &str)], key: &str| {
        let resource = options(&wanted, variables).unwrap().unwrap().resource;
        let values: Vec<_> = resource.into_iter().filter(|(name, _)| name == key).map(|(_, value)| value).collect();
        assert_eq!(values.len(), 1, "{key}");
        values.concat()
    };
    assert_eq!((value(&[], "service.name"), value(&[], "service.namespace")), ("math".into(), "prod".into()));
    assert_eq!(value(&[], "service.instance.id").len(), 32);
    let given = ("OTEL_RESOURCE_ATTRIBUTES", "service.name=a,service.namespace=b,k8s.pod.name=c");
    assert_eq!((value(&[given], "service.name"), value(&[given], "k8s.pod.name")), ("a".into(), "c".into()));
    assert_eq!(value(&[given, ("OTEL_SERVICE_NAME", "d")], "service.name"), "d");
}

#[test]
fn samplers_take_their_part_and_say_whether_callers_count() {
    let sampler = |variables: &[(&str, &str)]| options(&here(), variables).unwrap().unwrap().sampler;
    let sampler =
        |name: &str, argument: &str| sampler(&[("OTEL_TRACES_SAMPLER", name), ("OTEL_TRACES_SAMPLER_ARG", argument)]);
    for (name, argument, ratio, honours_callers) in [
        ("", "", SAMPLE, true),
        ("always_on", "", 1.0, false),
        ("always_off", "", 0.0, false),
        ("traceidratio", "0.25", 0.25, false),
        ("parentbased_always_on", "", 1.0, true),
        ("parentbased_always_off", "0.5", 0.0, true),
        ("parentbased_traceidratio", "0.5", 0.5, true),
        ("parentbased_traceidratio", "", 1.0, true),
    ] {
        assert_eq!(sampler(name, argument), Sampler { ratio, honours_callers }, "{name} {argument}");
    }
    for ratio in [0.0, 0.1, 0.5, 1.0] {
        let sampler = Sampler { ratio, honours_callers: true };
        let taken = (0..10_000).filter(|_| sampler.takes(&new_trace())).count();
        #[allow(clippy::cast_precision_loss, reason = "a test")]
        let part = taken as f64 / 10_000.0;
        assert!((part - ratio).abs() < 0.03, "{ratio}: {part}");
    }
}
