{{/*
All objects of a workload: with `root`, `name`, `values`, and `kind`: service, gateway, authd or exporter.
Values come out by toYaml, quote or as numbers only, so that no text can be more than a text.
*/}}
{{- define "sealwire.workload" }}
{{- $root := .root }}
{{- $it := mergeOverwrite (deepCopy $root.Values.defaults) .values }}
{{- $what := ternary .name (printf "%ss.%s" .kind .name) (eq .kind "authd") }}
{{- $full := printf "%s-%s" (include "sealwire.fullname" $root) .name }}
{{- $labels := include "sealwire.labels" (dict "root" $root "name" .name) }}
{{- $selector := include "sealwire.selector" (dict "root" $root "name" .name) }}
{{- $image := mergeOverwrite (deepCopy $root.Values.image) ($it.image | default dict) }}
{{- if hasKey ($it.image | default dict) "repository" }}{{ $image = mergeOverwrite (dict "pullPolicy" $root.Values.image.pullPolicy) $it.image }}{{ end }}
{{- $port := ternary 9465 9464 (eq .kind "exporter") }}
{{- $most := ternary $it.autoscaling.max $it.replicas (not (empty $it.autoscaling)) }}
{{- $file := ternary "gateway.toml" "sealwire.toml" (eq .kind "gateway") }}
{{- $command := dict "service" (list "serve") "gateway" (list "gateway") "exporter" (list "exporter" "--listen" "0.0.0.0:9465" "--allow-remote") "authd" (list "authd" "--login" "/etc/sealwire/secrets/authd.nats.json" "--issuer" "/etc/sealwire/secrets/issuer.nk" "--xkey" "/etc/sealwire/secrets/authd.xk" "--config" "/etc/sealwire/config" "--listen" "0.0.0.0:9464" "--allow-remote") }}
{{- $args := get $command .kind }}
{{- $config := $it.config | default "" }}
{{- /* Texts by the names of files, and policies by the names of volumes. */}}
{{- $configs := dict $file $config }}
{{- $policies := dict }}
{{- if eq .kind "service" }}{{ $policies = dict "policies" (mergeOverwrite (dict "path" "/etc/sealwire/policies") $it.policies) }}{{ end }}
{{- if eq .kind "authd" }}
{{- $configs = dict }}
{{- range $service, $judged := $it.services }}
{{- $folder := printf "/etc/sealwire/policies/%s" $service }}
{{- include "sealwire.check" (dict "what" (printf "authd.services.%s" $service) "config" $judged.config "replicas" 1 "kind" "authd" "folder" $folder) }}
{{- $_ := set $configs (printf "%s.toml" $service) $judged.config }}
{{- $_ := set $policies (printf "policies-%s" $service) (mergeOverwrite (dict "path" $folder) $judged.policies) }}
{{- end }}
{{- $config = toYaml $configs }}
{{- end }}
{{- if has .kind (list "exporter" "authd") }}
{{- $args = concat $args ($it.args | default list) }}
{{- else }}
{{- include "sealwire.check" (dict "what" $what "config" $config "replicas" $most "kind" .kind "folder" "/etc/sealwire/policies") }}
{{- $args = ternary $it.args (concat $args (list "--config" (printf "/etc/sealwire/config/%s" $file))) (hasKey $it "args") }}
{{- end }}
{{- if ne .kind "exporter" }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $full }}-config
  labels: {{- $labels | nindent 4 }}
data: {{- toYaml $configs | nindent 2 }}
{{- end }}
{{- range $volume, $mounted := $policies }}
{{- if $mounted.files }}
---
apiVersion: v1
kind: ConfigMap
metadata:
  name: {{ $full }}-{{ $volume }}
  labels: {{- $labels | nindent 4 }}
data: {{- toYaml $mounted.files | nindent 2 }}
{{- end }}
{{- end }}
---
apiVersion: apps/v1
kind: Deployment
metadata:
  name: {{ $full }}
  labels: {{- $labels | nindent 4 }}
spec:
  {{- if empty $it.autoscaling }}
  replicas: {{ int $it.replicas }}
  {{- end }}
  revisionHistoryLimit: 5
  strategy:
    {{- if and (eq .kind "service") (not (include "sealwire.shared" $config)) }}
    # Its memory of what has run is its own, so there must never be two.
    type: Recreate
    {{- else }}
    type: RollingUpdate
    rollingUpdate: { maxSurge: 1, maxUnavailable: 0 }
    {{- end }}
  selector:
    matchLabels: {{- $selector | nindent 6 }}
  template:
    metadata:
      labels: {{- merge (fromYaml $labels) $it.podLabels | toYaml | nindent 8 }}
      annotations:
        {{- /* The program reads keys and policies again by itself, and its configuration only at the start. */}}
        {{- merge (dict "sealwire/config" (sha256sum $config)) $it.podAnnotations | toYaml | nindent 8 }}
    spec:
      serviceAccountName: {{ include "sealwire.fullname" $root }}
      automountServiceAccountToken: false
      enableServiceLinks: false
      terminationGracePeriodSeconds: {{ int $it.terminationGracePeriodSeconds }}
      securityContext:
        runAsNonRoot: true
        runAsUser: 65532
        runAsGroup: 65532
        # To this group the kubelet gives what it mounts.
        fsGroup: 65532
        fsGroupChangePolicy: OnRootMismatch
        seccompProfile: { type: RuntimeDefault }
      containers:
        - name: sealwire
          image: {{ include "sealwire.image" (dict "root" $root "image" $image) | quote }}
          imagePullPolicy: {{ $image.pullPolicy | quote }}
          args: {{- toYaml $args | nindent 12 }}
          env:
            {{- range $variable, $value := merge (dict "SEALWIRE_SECRET_GROUPS" "65532") $it.env }}
            - name: {{ $variable | quote }}
              value: {{ $value | quote }}
            {{- end }}
          ports:
            - { name: metrics, containerPort: {{ $port }} }
            {{- if eq .kind "gateway" }}
            - { name: https, containerPort: 8443 }
            {{- end }}
          # A broker that is away makes it not ready, and is no reason to restart it.
          startupProbe:
            httpGet: { path: /livez, port: metrics }
            periodSeconds: 2
            failureThreshold: 30
          livenessProbe:
            httpGet: { path: /livez, port: metrics }
            periodSeconds: 10
            timeoutSeconds: 5
            failureThreshold: 6
          readinessProbe:
            httpGet: { path: /readyz, port: metrics }
            periodSeconds: 5
            timeoutSeconds: 3
          resources: {{- toYaml $it.resources | nindent 12 }}
          securityContext:
            allowPrivilegeEscalation: false
            readOnlyRootFilesystem: true
            capabilities: { drop: [ALL] }
          volumeMounts:
            {{- if ne .kind "exporter" }}
            - { name: config, mountPath: /etc/sealwire/config, readOnly: true }
            {{- end }}
            {{- if $it.secrets }}
            - { name: secrets, mountPath: /etc/sealwire/secrets, readOnly: true }
            {{- end }}
            {{- range $volume, $mounted := $policies }}
            - { name: {{ $volume }}, mountPath: {{ $mounted.path }}, readOnly: true }
            {{- end }}
            {{- range $volume, $claim := $it.claims }}
            - name: claim-{{ $volume }}
              mountPath: {{ $claim.path | quote }}
            {{- end }}
      volumes:
        {{- if ne .kind "exporter" }}
        - name: config
          configMap: { name: {{ $full }}-config }
        {{- end }}
        {{- if $it.secrets }}
        - name: secrets
          projected:
            defaultMode: 0440
            sources:
              {{- range $it.secrets }}
              - secret: { name: {{ . | quote }} }
              {{- end }}
        {{- end }}
        {{- range $volume, $mounted := $policies }}
        - name: {{ $volume }}
          configMap: { name: {{ $mounted.configMap | default (printf "%s-%s" $full $volume) | quote }} }
        {{- end }}
        {{- range $volume, $claim := $it.claims }}
        - name: claim-{{ $volume }}
          persistentVolumeClaim: { claimName: {{ $claim.claim | quote }} }
        {{- end }}
      topologySpreadConstraints:
        {{- range list "kubernetes.io/hostname" "topology.kubernetes.io/zone" }}
        - maxSkew: 1
          topologyKey: {{ . }}
          whenUnsatisfiable: ScheduleAnyway
          labelSelector:
            matchLabels: {{- $selector | nindent 14 }}
        {{- end }}
      {{- with $it.nodeSelector }}
      nodeSelector: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $it.tolerations }}
      tolerations: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $it.affinity }}
      affinity: {{- toYaml . | nindent 8 }}
      {{- end }}
      {{- with $it.priorityClassName }}
      priorityClassName: {{ . | quote }}
      {{- end }}
---
# For metrics, of each replica.
apiVersion: v1
kind: Service
metadata:
  name: {{ $full }}-metrics
  labels: {{- merge (dict "sealwire/metrics" "yes") (fromYaml $labels) | toYaml | nindent 4 }}
spec:
  clusterIP: None
  publishNotReadyAddresses: true
  selector: {{- $selector | nindent 4 }}
  ports:
    - { name: metrics, port: {{ $port }}, targetPort: metrics }
{{- if eq .kind "gateway" }}
{{- $service := mergeOverwrite (dict "type" "ClusterIP" "port" 443 "annotations" dict) ($it.service | default dict) }}
---
apiVersion: v1
kind: Service
metadata:
  name: {{ $full }}
  labels: {{- $labels | nindent 4 }}
  {{- with $service.annotations }}
  annotations: {{- toYaml . | nindent 4 }}
  {{- end }}
spec:
  type: {{ $service.type | quote }}
  selector: {{- $selector | nindent 4 }}
  # Gateways do not know each other here, and some messages are for the one that runs the call.
  sessionAffinity: ClientIP
  ports:
    - { name: https, port: {{ int $service.port }}, targetPort: https }
{{- end }}
{{- if gt (int $most) 1 }}
---
apiVersion: policy/v1
kind: PodDisruptionBudget
metadata:
  name: {{ $full }}
  labels: {{- $labels | nindent 4 }}
spec:
  maxUnavailable: 1
  # A replica that is not ready serves nobody, so it need not hold up a node.
  unhealthyPodEvictionPolicy: AlwaysAllow
  selector:
    matchLabels: {{- $selector | nindent 6 }}
{{- end }}
{{- with $it.autoscaling }}
---
apiVersion: autoscaling/v2
kind: HorizontalPodAutoscaler
metadata:
  name: {{ $full }}
  labels: {{- $labels | nindent 4 }}
spec:
  scaleTargetRef: { apiVersion: apps/v1, kind: Deployment, name: {{ $full }} }
  minReplicas: {{ int .min }}
  maxReplicas: {{ int .max }}
  metrics:
    - type: Pods
      pods:
        metric: { name: {{ .metric | default (ternary "sealwire_authd_waiting_questions" "sealwire_queue_messages" (eq $.kind "authd")) | quote }} }
        target: { type: AverageValue, averageValue: {{ .target | quote }} }
  behavior:
    # A replica that goes takes its share of the work along.
    scaleDown: { stabilizationWindowSeconds: 300 }
{{- end }}
{{- with $root.Values.networkPolicy }}
{{- if .enabled }}
---
apiVersion: networking.k8s.io/v1
kind: NetworkPolicy
metadata:
  name: {{ $full }}
  labels: {{- $labels | nindent 4 }}
spec:
  podSelector:
    matchLabels: {{- $selector | nindent 6 }}
  policyTypes: [Ingress, Egress]
  ingress:
    {{- with .metricsFrom }}
    - from: {{- toYaml . | nindent 8 }}
      ports: [{ protocol: TCP, port: metrics }]
    {{- end }}
    {{- if eq $.kind "gateway" }}
    - ports: [{ protocol: TCP, port: https }]
      {{- with .callersFrom }}
      from: {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- end }}
  egress:
    - ports: [{ protocol: UDP, port: 53 }, { protocol: TCP, port: 53 }]
    - ports: [{ protocol: TCP, port: {{ int .nats.port }} }]
      {{- with .nats.to }}
      to: {{- toYaml . | nindent 8 }}
      {{- end }}
    {{- with .egress }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
{{- end }}
{{- end }}
{{- with $root.Values.monitoring.serviceMonitor }}
{{- if .enabled }}
---
apiVersion: monitoring.coreos.com/v1
kind: ServiceMonitor
metadata:
  name: {{ $full }}
  labels: {{- merge (fromYaml $labels) .labels | toYaml | nindent 4 }}
spec:
  # Alerts and dashboard call `job` the service.
  jobLabel: app.kubernetes.io/component
  selector:
    matchLabels: {{- merge (dict "sealwire/metrics" "yes") (fromYaml $selector) | toYaml | nindent 6 }}
  endpoints:
    - { port: metrics, interval: {{ .interval | quote }} }
{{- end }}
{{- end }}
{{- end }}
