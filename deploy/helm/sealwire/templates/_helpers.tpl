{{/* What names of all objects begin with. */}}
{{- define "sealwire.fullname" -}}
{{- if contains "sealwire" .Release.Name }}{{ .Release.Name | trunc 30 | trimSuffix "-" }}{{ else }}{{ printf "%s-sealwire" (.Release.Name | trunc 20 | trimSuffix "-") }}{{ end }}
{{- end }}

{{/* Labels by which pods are found: of a workload, with `root` and `name`. */}}
{{- define "sealwire.selector" -}}
app.kubernetes.io/name: sealwire
app.kubernetes.io/instance: {{ .root.Release.Name | quote }}
app.kubernetes.io/component: {{ .name | quote }}
{{- end }}

{{/* Labels of an object that belongs to a workload, or with `root` alone, to all. */}}
{{- define "sealwire.labels" -}}
{{- $own := dict "app.kubernetes.io/name" "sealwire" "app.kubernetes.io/instance" .root.Release.Name "app.kubernetes.io/version" .root.Chart.AppVersion "app.kubernetes.io/managed-by" .root.Release.Service "helm.sh/chart" (printf "%s-%s" .root.Chart.Name .root.Chart.Version) }}
{{- if .name }}{{ $_ := set $own "app.kubernetes.io/component" .name }}{{ end }}
{{- toYaml (merge $own .root.Values.labels) }}
{{- end }}

{{/* The image of a workload: by its digest, if there is one. */}}
{{- define "sealwire.image" -}}
{{- if .image.digest }}{{ printf "%s@%s" .image.repository .image.digest }}{{ else }}{{ printf "%s:%s" .image.repository (.image.tag | default .root.Chart.AppVersion) }}{{ end }}
{{- end }}

{{/*
What a configuration must have for what the chart promises of it, and must not have in a ConfigMap. The program judges all the rest at its
start, and does not start with a file that it cannot use. With `what`, `config`, `replicas`, `kind`, and `folder`, where policies are mounted.
*/}}
{{- define "sealwire.check" -}}
{{- if regexMatch "(?m)(^|[\\s{,.\"'])(password|token|nkey_seed)[\"']?\\s*=" .config }}
{{- fail (printf "%s.config has a password, token or nkey_seed, and is put into a ConfigMap: keep it in a Secret, and name its file by password_file or nkey_seed_file" .what) }}
{{- end }}
{{- if and (ne .kind "authd") (not (and (regexMatch "(?m)^\\s*listen\\s*=\\s*\"(0\\.0\\.0\\.0|\\[::\\]):9464\"" .config) (regexMatch "(?m)^\\s*allow_remote\\s*=\\s*true" .config))) }}
{{- fail (printf "%s.config: probes and metrics need `[telemetry]` with the lines `listen = \"0.0.0.0:9464\"` and `allow_remote = true`" .what) }}
{{- end }}
{{- if and (has .kind (list "service" "authd")) (not (regexMatch (printf "(?m)^\\s*folder\\s*=\\s*\"%s\"" .folder) .config)) }}
{{- fail (printf "%s.config: policies are mounted in one place, so `[policy]` needs the line `folder = \"%s\"`" .what .folder) }}
{{- end }}
{{- if eq .kind "service" }}
{{- if and (gt (int .replicas) 1) (not (include "sealwire.shared" .config)) }}
{{- fail (printf "%s has %d replicas and a local replay guard: a message could run once in each. Write `guard = \"shared\"` under `[replay]`, or set `replicas: 1`" .what (int .replicas)) }}
{{- end }}
{{- end }}
{{- if eq .kind "gateway" }}
{{- if not (regexMatch "(?m)^\\s*listen\\s*=\\s*\"(0\\.0\\.0\\.0|\\[::\\]):8443\"" .config) }}
{{- fail (printf "%s.config: callers are led to port 8443, so `[gateway]` needs the line `listen = \"0.0.0.0:8443\"`" .what) }}
{{- end }}
{{- end }}
{{- end }}

{{/* Whether replicas of a service remember together what has run. */}}
{{- define "sealwire.shared" -}}
{{- if regexMatch "(?m)^\\s*guard\\s*=\\s*\"shared\"" . }}yes{{ end }}
{{- end }}
