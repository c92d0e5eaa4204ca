package policy

import (
	"slices"
	"strings"
)

// SecretHandle names a secret of the operator's, or of the caller's of `yoi run`.
// It is an id, and all of a secret that policies, evidence and the API have.
type SecretHandle string

// SecretDelivery is how a Worker gets the use of a secret.
type SecretDelivery string

const (
	// SecretFile is a file that only the Worker reads, in memory: SecretsAt/NAME.
	SecretFile SecretDelivery = "file"
	// SecretEnv is a variable of the Worker's environment.
	SecretEnv SecretDelivery = "env"
	// SecretHTTPHeader is a header that the egress proxy adds to the Worker's
	// requests to one host; the Worker never has the value.
	SecretHTTPHeader SecretDelivery = "http-header"
)

// SecretsAt is where files of secrets are in a sandbox, as containers have them.
const SecretsAt = "/run/secrets"

// Secret asks for the use of one secret. It never holds the value.
type Secret struct {
	Handle SecretHandle   `json:"handle"`
	As     SecretDelivery `json:"as"`
	// Name is the file's (default: the handle), the variable's (default: the handle
	// in upper case, with underscores) or the header's (default: Authorization).
	Name string `json:"name,omitempty"`
	// Host is where the header goes, "api.example.org" or with ":port"; for
	// http-header only, and needed there.
	Host string `json:"host,omitempty"`
	// Prefix stands before the value in the header, such as "Bearer ".
	Prefix string `json:"prefix,omitempty"`
}

// SecretUse is evidence that a Worker was given a secret: how, and out of which
// kind of store. There is no digest of the value: of a short secret it would be the
// secret, for whoever can guess, and a keyed one would be told apart only by whoever
// has the key and could read the store as well.
type SecretUse struct {
	Handle SecretHandle   `json:"handle"`
	As     SecretDelivery `json:"as"`
	Name   string         `json:"name"`
	Host   string         `json:"host,omitempty"`
	Store  string         `json:"store"` // file, credential, command, or caller for those of `yoi run`
}

const (
	// MaxSecrets is how many one policy names, MaxSecretBytes how large one is: an
	// environment variable can be no larger (MAX_ARG_STRLEN, execve(2)).
	MaxSecrets     = 64
	MaxSecretBytes = 127 << 10
)

// Target is Name, or its default.
func (s Secret) Target() string {
	switch {
	case s.Name != "":
		return s.Name
	case s.As == SecretEnv:
		return strings.Map(func(r rune) rune {
			if r == '-' || r == '.' {
				return '_'
			}
			return r
		}, strings.ToUpper(string(s.Handle)))
	case s.As == SecretHTTPHeader:
		return "Authorization"
	}
	return string(s.Handle)
}

// Validate checks one secret's form.
func (s Secret) Validate() error {
	const op = "policy.secrets"
	if err := CheckID("secret", string(s.Handle)); err != nil {
		return err
	}
	bad := func(format string, args ...any) *Diagnostic {
		return Errorf(CodePolicyInvalid, op, format, args...).With("secret", string(s.Handle))
	}
	if s.As != SecretHTTPHeader && (s.Host != "" || s.Prefix != "") {
		return bad("the secret %s: a host and a prefix go with http-header", s.Handle)
	}
	name := s.Target()
	switch s.As {
	case SecretFile:
		if !plainName(name) {
			return bad("the secret %s: %q is not a file's name", s.Handle, Printable(name))
		}
	case SecretEnv:
		if !isVariable(name) {
			return bad("the secret %s: %q is not a variable's name", s.Handle, Printable(name)).
				WithHint("Name the variable: name = \"TOKEN\".")
		}
	case SecretHTTPHeader:
		if !isToken(name) {
			return bad("the secret %s: %q is not a header's name", s.Handle, Printable(name))
		}
		if slices.Contains(ownHeaders, strings.ToLower(name)) {
			return bad("the secret %s: the header %s is the proxy's own", s.Handle, Printable(name))
		}
		if !IsHostPort(s.Host) {
			return bad("the secret %s: %q is not the one host that it goes to", s.Handle, Printable(s.Host))
		}
		if len(s.Prefix) > 64 || strings.ContainsFunc(s.Prefix, func(r rune) bool { return r < ' ' || r > '~' }) {
			return bad("the secret %s: the prefix is not up to 64 printable characters", s.Handle)
		}
	default:
		return bad("%q is no way to deliver a secret", Printable(string(s.As))).WithHint("Use file, env or http-header.")
	}
	return nil
}

// ownHeaders would let a secret's value change what the proxy's request means.
var ownHeaders = []string{"host", "connection", "content-length", "transfer-encoding", "te", "trailer", "upgrade", "keep-alive", "proxy-connection", "proxy-authorization", "expect"}

func isVariable(s string) bool {
	if s == "" || len(s) > 256 || (s[0] >= '0' && s[0] <= '9') {
		return false
	}
	for i := 0; i < len(s); i++ {
		if c := s[i]; c != '_' && (c < 'a' || c > 'z') && (c < 'A' || c > 'Z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

func plainName(s string) bool {
	return s != "" && s != "." && s != ".." && len(s) <= 255 && !strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r == '/' || r > '~' })
}

// isToken is RFC 9110's, of which a field's name is made.
func isToken(s string) bool {
	return s != "" && len(s) <= 128 && !strings.ContainsFunc(s, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < 'A' || r > 'Z') && (r < '0' || r > '9') && !strings.ContainsRune("!#$%&'*+-.^_`|~", r)
	})
}

// IsHostPort tells whether s is a host's name, in lower case and without a final
// dot, with or without a port. An address is none: what it means may change.
func IsHostPort(s string) bool {
	host, port, found := strings.Cut(s, ":")
	if found {
		n := 0
		for i := 0; i < len(port); i++ {
			if port[i] < '0' || port[i] > '9' || (i == 0 && port[i] == '0') || n > 65535 {
				return false
			}
			n = 10*n + int(port[i]-'0')
		}
		if n < 1 || n > 65535 {
			return false
		}
	}
	labels := strings.Split(host, ".")
	if len(host) > 253 {
		return false
	}
	for _, l := range labels {
		if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' {
			return false
		}
		for i := 0; i < len(l); i++ {
			if c := l[i]; c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
				return false
			}
		}
	}
	last := labels[len(labels)-1]
	return strings.ContainsFunc(last, func(r rune) bool { return r >= 'a' && r <= 'z' }) && !strings.HasPrefix(last, "0x")
}

// ValidateSecrets checks a policy's list under its network: two secrets cannot
// have one place.
func ValidateSecrets(list []Secret, network NetworkMode) error {
	const op = "policy.secrets"
	if len(list) > MaxSecrets {
		return Errorf(CodePolicyInvalid, op, "more than %d secrets are asked for", MaxSecrets)
	}
	type place struct {
		as         SecretDelivery
		name, host string
	}
	seen := make(map[place]bool, len(list))
	for _, s := range list {
		if err := s.Validate(); err != nil {
			return err
		}
		if s.As == SecretHTTPHeader && network != NetworkAllowlist {
			return Errorf(CodePolicyInvalid, op, "the secret %s: http-header goes with the network mode allowlist, whose proxy adds the header", s.Handle).
				With("secret", string(s.Handle))
		}
		p := place{s.As, s.Target(), s.Host}
		if s.As == SecretHTTPHeader {
			p.name = strings.ToLower(p.name)
		}
		if seen[p] {
			return Errorf(CodePolicyInvalid, op, "two secrets are to be %s %s", s.As, Printable(s.Target())).With("secret", string(s.Handle))
		}
		seen[p] = true
	}
	return nil
}
