package helper

import (
	"yoi.dev/yoi-runtime/internal/secret"
	"yoi.dev/yoi-runtime/mounts"
	"yoi.dev/yoi-runtime/nsexec"
	"yoi.dev/yoi-runtime/policy"
)

// validateSecrets refuses what has no place in a sandbox: headers are the egress
// proxy's, and neither a look nor an external command is given anything.
func (r LaunchRequest) validateSecrets() error {
	const op = "helper.launch"
	if len(r.Secrets) > 0 && (r.ReadOnly || r.External) {
		return policy.Errorf(policy.CodeBadRequest, op, "secrets are for Workers only")
	}
	return policy.ValidateSecrets(r.Secrets, policy.NetworkNone)
}

// checkSecretFiles holds the request and the descriptors to each other.
func checkSecretFiles(req LaunchRequest, files LaunchFiles) error {
	if (len(req.Secrets) > 0) != (files.Secrets != nil) || req.Egress.hasSecrets() != (files.Headers != nil) {
		return policy.Errorf(policy.CodeBadRequest, "helper.launch", "the secrets and their values do not belong together")
	}
	return nil
}

// openSecrets takes the values out of the memfd. From here on they are in locked
// memory, until the launch has copied them to the sandbox.
func (a *attempt) openSecrets() error {
	if err := checkSecretFiles(a.req, a.files); err != nil || a.files.Secrets == nil {
		return err
	}
	set, err := secret.Unpack(a.files.Secrets, a.req.Secrets)
	if err != nil {
		return policy.Errorf(policy.CodeBadRequest, "helper.launch", "the secrets' values are not what the request says").Because(err)
	}
	a.secrets = set
	return nil
}

// secretFiles is the directory of those that are files. It is in the Worker's mount
// namespace alone, and goes with it: nothing has to be wiped, whatever crashes.
func secretFiles(set secret.Set) []mounts.Op {
	var files []mounts.SecretFile
	for _, g := range set {
		if g.As == policy.SecretFile {
			files = append(files, mounts.SecretFile{Name: g.Target(), Content: g.Value.Bytes()})
		}
	}
	if files == nil {
		return nil
	}
	return []mounts.Op{mounts.Secrets{Target: policy.SecretsAt, Files: files}}
}

func secretEnv(set secret.Set) []nsexec.SecretVar {
	var vars []nsexec.SecretVar
	for _, g := range set {
		if g.As == policy.SecretEnv {
			vars = append(vars, nsexec.SecretVar{Name: g.Target(), Value: g.Value.Bytes()})
		}
	}
	return vars
}
