{{/* Labels of every object, and the selector of the Pods. They equal those of manifests/. */}}
{{- define "operating.labels" -}}
app.kubernetes.io/name: operating
{{- end }}

{{/* Refuses what the schema of the values cannot express. */}}
{{- define "operating.validate" -}}
{{- if eq .Release.Namespace "default" }}
{{- fail "the namespace of the release is default: rules have no effect in the namespace of the server, so give it one of its own: --namespace kusionstack-system --create-namespace" }}
{{- end }}
{{- $trusted := false }}
{{- range .Values.extraArgs }}
{{- if hasPrefix "--trust-callers" . }}
{{- $trusted = true }}
{{- end }}
{{- end }}
{{- if and .Values.featureGates.GraceDeleteWebhook (not .Values.clientCertificates.configMap) (not $trusted) }}
{{- fail "featureGates.GraceDeleteWebhook is true, and the server does not know who calls: set clientCertificates.configMap, or add --trust-callers to extraArgs if only API servers reach its port" }}
{{- end }}
{{- if and .Values.clientCertificates.configMap $trusted }}
{{- fail "extraArgs has --trust-callers, and clientCertificates.configMap is set: use one of them" }}
{{- end }}
{{- if and .Values.traffic.files (not .Values.traffic.config) }}
{{- fail "traffic.files is set, and traffic.config is not: the server reads the files only for the adapters of traffic.config" }}
{{- end }}
{{- end }}

{{/* Not empty if the Pods mount anything. */}}
{{- define "operating.hasVolumes" -}}
{{- if or (eq .Values.certificates "cert-manager") .Values.clientCertificates.configMap .Values.traffic.config -}}
true
{{- end }}
{{- end }}
