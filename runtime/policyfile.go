package runtime

import (
	"bytes"
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/pelletier/go-toml/v2"

	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/policy/seccomp"
	"yoi.dev/yoi-runtime/policy/seccomp/compile"
)

// ParsePolicy reads a sandbox policy from a file's content: TOML, or JSON as the
// API has it, whichever begins with a brace. In both, durations may be texts
// ("10m") and sizes too ("2G"). Anything that is not known is an error, so that a
// misspelt protection is never ignored. The result is normalized and valid, and
// its system calls are known to the compiler.
func ParsePolicy(b []byte) (policy.SandboxPolicy, error) {
	const op = "runtime.policy"
	var p policy.SandboxPolicy
	tree := make(map[string]any)
	if trimmed := bytes.TrimSpace(b); len(trimmed) > 0 && trimmed[0] == '{' {
		d := json.NewDecoder(bytes.NewReader(b))
		d.UseNumber()
		if err := d.Decode(&tree); err != nil {
			return p, policy.Errorf(policy.CodePolicyInvalid, op, "the policy is not JSON: %v", err).Because(err)
		}
		if d.More() {
			return p, policy.Errorf(policy.CodePolicyInvalid, op, "there is more behind the policy's JSON object")
		}
	} else if err := toml.Unmarshal(b, &tree); err != nil {
		d := *policy.AsDiagnostic(tomlDiagnostic(err))
		d.Code = policy.CodePolicyInvalid
		return p, &d
	}
	if err := plainNumbers(tree); err != nil {
		return p, err
	}
	canonical, err := json.Marshal(tree)
	if err != nil {
		return p, policy.Errorf(policy.CodePolicyInvalid, op, "the policy holds what no policy has: a date, say").Because(err)
	}
	d := json.NewDecoder(bytes.NewReader(canonical))
	d.DisallowUnknownFields()
	if err := d.Decode(&p); err != nil {
		return p, policy.Errorf(policy.CodePolicyInvalid, op, "%s", strings.TrimPrefix(err.Error(), "json: ")).Because(err)
	}
	if err := p.Validate(); err != nil {
		return p, err
	}
	if _, err := compile.Filter(p); err != nil {
		return p, err
	}
	return p.Normalize(), nil
}

// plainNumbers replaces the texts of durations and sizes by the numbers that the
// API has.
func plainNumbers(tree map[string]any) error {
	for table, duration := range map[string]map[string]bool{
		"limits":  {"wall_clock": true, "cpu_time": true},
		"quota":   {},
		"network": {"idle_timeout": true},
	} {
		fields, ok := tree[table].(map[string]any)
		if !ok {
			continue
		}
		for k, v := range fields {
			s, ok := v.(string)
			if !ok || table == "network" && k == "mode" {
				continue
			}
			var n any
			var err error
			if duration[k] {
				n, err = time.ParseDuration(s)
			} else {
				n, err = policy.ParseSize(s)
			}
			if err != nil {
				return policy.Errorf(policy.CodePolicyInvalid, "runtime.policy", "%s.%s: %q: %v", table, policy.Printable(k), policy.Printable(s), err)
			}
			fields[k] = n
		}
	}
	return nil
}

// PolicyExplanation says what a Worker under a policy could see and do on this
// host.
type PolicyExplanation struct {
	Policy        policy.SandboxPolicy `json:"policy"`
	Digest        string               `json:"digest"`
	SeccompDigest string               `json:"seccomp_digest"`
	// Sees lists the whole file system: what is not in it does not exist inside.
	Sees []helper.View `json:"sees"`
	// Notes are sentences about what paths do not show.
	Notes []string `json:"notes"`
}

// ExplainPolicy asks nothing but this host.
func ExplainPolicy(p policy.SandboxPolicy) (PolicyExplanation, error) {
	p = p.Normalize()
	x := PolicyExplanation{Policy: p, Digest: p.Digest()}
	filter, err := compile.Filter(p)
	if err != nil {
		return x, err
	}
	x.SeccompDigest = digest(filter)
	if x.Sees, err = helper.Explain(p); err != nil {
		return x, err
	}
	profile, err := seccomp.Lookup(p.Seccomp)
	if err != nil {
		return x, err
	}
	x.Notes = append(x.Notes, networkNote(p.Network),
		"System calls: profile "+string(p.Seccomp)+". "+profile.Why+" See docs/seccomp.md.")
	if len(p.SeccompAllow) > 0 {
		x.Notes = append(x.Notes, "Further system calls: "+strings.Join(p.SeccompAllow, ", ")+".")
	}
	x.Notes = append(x.Notes, helper.ExplainLandlock(p),
		"Always: namespaces of its own, uid and gid 1000 without any capability or way to gain one, no process of the host, no device beside those of /dev.",
		"Environment: what the sandbox sets (HOME, PATH, YOI_WORKSPACE …)"+envNote(p.Env)+" Nothing is inherited.")
	for _, s := range p.Secrets {
		switch s.As {
		case policy.SecretEnv:
			x.Notes = append(x.Notes, "Secret "+string(s.Handle)+": the variable "+s.Target()+".")
		case policy.SecretHTTPHeader:
			x.Notes = append(x.Notes, "Secret "+string(s.Handle)+": the header "+s.Target()+" of requests to "+s.Host+", which the egress proxy adds. The Worker never has the value.")
		}
	}
	return x, nil
}

func networkNote(p policy.NetworkPolicy) string {
	switch p.Mode {
	case policy.NetworkHost:
		return "Network: the host's own, with everything that listens on it. Nothing is filtered."
	case policy.NetworkAllowlist:
	default:
		return "Network: none. A loopback interface of its own, and no route anywhere."
	}
	s := "Network: a loopback interface of its own and no route; a proxy outside (HTTP and SOCKS 5 at " + egress.ProxyAddr.String() + ", which the environment names) connects to "
	if len(p.Rules) == 0 {
		return s + "nothing, since there is no rule."
	}
	s += strings.Join(p.Rules, ", ") + ". Names lead to public addresses only, but for ranges behind @; TLS must ask for the name itself, and HTTP."
	if p.Transparent {
		s += " Programs that know of no proxy find the names at loopback addresses."
	}
	n := p.MaxConnections
	if n == 0 {
		n = policy.DefaultConnections
	}
	s += fmt.Sprintf(" At most %d connections at once", n)
	if p.MaxBytes > 0 {
		s += fmt.Sprintf(" and %d bytes in all", p.MaxBytes)
	}
	return s + ". Every decision is logged: yoi worker egress."
}

func envNote(env map[string]string) string {
	if len(env) == 0 {
		return "."
	}
	names := make([]string, 0, len(env))
	for k := range env {
		names = append(names, policy.Printable(k))
	}
	slices.Sort(names)
	return " and " + strings.Join(names, ", ") + "."
}
