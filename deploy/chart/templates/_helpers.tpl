{{- define "onenth.labels" -}}
app.kubernetes.io/name: onenth
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}

{{- define "onenth.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The settings, as a dictionary: what the values say of them, under what is given by name. */ -}}
{{- define "onenth.settings" -}}
{{- $settings := dict
  "ONENTH_CONNTRACK_MAX_PER_CORE" "0"
  "ONENTH_CONNTRACK_TCP_TIMEOUT_CLOSE_WAIT" "0s"
  "ONENTH_CONNTRACK_TCP_TIMEOUT_ESTABLISHED" "0s"
  "ONENTH_LOGGING_FORMAT" "json" }}
{{- if .Values.sysctls.enabled }}
{{- $_ := set $settings "ONENTH_CONNTRACK_MAX_PER_CORE" "32768" }}
{{- $_ := set $settings "ONENTH_CONNTRACK_TCP_TIMEOUT_CLOSE_WAIT" "1h0m0s" }}
{{- $_ := set $settings "ONENTH_CONNTRACK_TCP_TIMEOUT_ESTABLISHED" "24h0m0s" }}
{{- end }}
{{- with .Values.apiServer }}{{ $_ := set $settings "ONENTH_API_SERVER" . }}{{ end }}
{{- with .Values.clusterCIDR }}{{ $_ := set $settings "ONENTH_CLUSTER_CIDR" . }}{{ end }}
{{- range $name, $value := .Values.settings }}
{{- $_ := set $settings $name (toString $value) }}
{{- end }}
{{- toYaml $settings }}
{{- end }}
