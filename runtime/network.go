package runtime

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"strings"

	"golang.org/x/sys/unix"

	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// networkEnvironment has a Worker's programs use the way out that it has.
func networkEnvironment(p policy.SandboxPolicy) map[string]string {
	if p.Network.Mode != policy.NetworkAllowlist {
		return nil
	}
	return egress.Environment(headersOf(p.Secrets))
}

// headersOf are the secrets that only the proxy has.
func headersOf(list []policy.Secret) []policy.Secret {
	var out []policy.Secret
	for _, s := range list {
		if s.As == policy.SecretHTTPHeader {
			out = append(out, s)
		}
	}
	return out
}

// rootFiles is where distributions keep the certificate authorities that the host
// believes, in one file.
var rootFiles = []string{"/etc/ssl/certs/ca-certificates.crt", "/etc/pki/tls/certs/ca-bundle.crt", "/etc/ssl/ca-bundle.pem", "/etc/ssl/cert.pem"}

// egressRequest is the way out of a Worker by an allowlist.
func (r *Runtime) egressRequest(p policy.SandboxPolicy) (*helper.EgressRequest, error) {
	q := &helper.EgressRequest{Network: p.Network, Resolvers: r.config().Network.Resolvers, Secrets: headersOf(p.Secrets)}
	if len(q.Secrets) == 0 {
		return q, nil
	}
	var err error
	q.Roots, err = r.authorities()
	return q, err
}

// authorities are who is believed for the hosts of http-header secrets, in PEM.
func (r *Runtime) authorities() ([]byte, error) {
	files, own := rootFiles, r.config().Network.Roots
	if own != "" {
		files = []string{own}
	}
	for _, name := range files {
		b, err := os.ReadFile(name)
		if err == nil {
			return b, nil
		}
		if !errors.Is(err, fs.ErrNotExist) || own != "" {
			return nil, policy.Errorf(policy.CodeEgressUnavailable, "runtime.egress", "the certificate authorities cannot be read").Because(err)
		}
	}
	return nil, policy.Errorf(policy.CodeEgressUnavailable, "runtime.egress", "this host has no file of certificate authorities").
		WithHint("Install ca-certificates, or name a file by network.roots in config.toml.")
}

// mayReach refuses to callers of the API what only the operator may open: addresses
// that are not public, where the host and its neighbours are.
func (r *Runtime) mayReach(p policy.NetworkPolicy) error {
	rules, err := p.ParsedRules()
	if err != nil {
		return err
	}
	for _, rule := range rules {
		if rule.Special() && !r.config().Network.AllowSpecial {
			return policy.Errorf(policy.CodePolicyInvalid, "runtime.create", "the network rule %s reaches beyond public addresses, which is not allowed in this Runtime", rule).
				WithHint("Set network.allow_special in config.toml.")
		}
	}
	return nil
}

// allowed is an allocation as a Worker has it that was given network rules of its own.
func (r *Runtime) allowed(a registry.Allocation, rules []string) (registry.Allocation, error) {
	if len(rules) == 0 {
		return a, nil
	}
	var err error
	if a.SandboxPolicy.Network, err = a.SandboxPolicy.Network.With(rules); err != nil {
		return a, err
	}
	return a, r.mayReach(a.SandboxPolicy.Network)
}

// networkOf is the network policy that a recorded Worker was started with.
func networkOf(a registry.Allocation, w registry.Worker) (policy.NetworkPolicy, error) {
	return a.SandboxPolicy.Network.With(w.Allow)
}

// EgressRequest asks for a Worker's way out: the last Limit decisions, 0 for
// DefaultDecisions.
type EgressRequest struct {
	Limit int `json:"limit,omitempty"`
}

// The bounds of EgressRequest.Limit.
const (
	DefaultDecisions = 100
	MaxDecisions     = 10000
)

// EgressReport is what a Worker's network policy let through and what it refused, so
// far. Hosts are what the Worker asked for: text of its own choice.
type EgressReport struct {
	WorkerID policy.WorkerID      `json:"worker_id"`
	Policy   policy.NetworkPolicy `json:"policy"`
	Usage    policy.NetworkUsage  `json:"usage"`
	// Lost says that the proxy ended before the Worker, which reaches nothing since.
	Lost      bool              `json:"lost,omitempty"`
	Decisions []egress.Decision `json:"decisions"`
}

// Decision is one line of the log.
type Decision = egress.Decision

// WorkerEgress reads what a Worker's proxy has counted and logged.
func (r *Runtime) WorkerEgress(ctx context.Context, id policy.WorkerID, req EgressRequest) (EgressReport, error) {
	const op = "runtime.egress"
	w, err := r.workerRecord(ctx, id)
	if err != nil {
		return EgressReport{}, err
	}
	if req.Limit == 0 {
		req.Limit = DefaultDecisions
	}
	if req.Limit < 0 || req.Limit > MaxDecisions {
		return EgressReport{}, policy.Errorf(policy.CodeBadRequest, op, "the limit is not between 1 and %d", MaxDecisions)
	}
	a, err := r.registry.GetAllocation(ctx, w.AllocationID)
	if err != nil {
		return EgressReport{}, err
	}
	out := EgressReport{WorkerID: id, Decisions: []egress.Decision{}}
	if out.Policy, err = networkOf(a, w); err != nil {
		return EgressReport{}, err
	}
	if out.Policy.Mode != policy.NetworkAllowlist {
		return out, nil
	}
	if out.Lost, err = r.lostProxy(id); err != nil {
		return out, err
	}
	if w.Network != nil {
		out.Usage = *w.Network
	} else if out.Usage, err = r.networkUsage(id, out.Policy); err != nil {
		return out, err
	}
	ds, err := r.decisions(id, req.Limit)
	if ds != nil {
		out.Decisions = ds
	}
	return out, err
}

// networkUsage reads the counters of a Worker, live or ended.
func (r *Runtime) networkUsage(id policy.WorkerID, p policy.NetworkPolicy) (policy.NetworkUsage, error) {
	f, err := r.root.OpenFile(helper.EgressFile(id, helper.EgressCounters), unix.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return egress.ReadUsage(strings.NewReader(""), p.Rules)
	}
	if err != nil {
		return policy.NetworkUsage{}, policy.Errorf(policy.CodeInternal, "runtime.egress", "the counters cannot be read").Because(err)
	}
	defer f.Close()
	u, err := egress.ReadUsage(f, p.Rules)
	if err != nil {
		return u, policy.Errorf(policy.CodeInternal, "runtime.egress", "the counters cannot be read").Because(err)
	}
	return u, nil
}

func (r *Runtime) decisions(id policy.WorkerID, limit int) ([]egress.Decision, error) {
	f, err := r.root.OpenFile(helper.EgressFile(id, helper.EgressLog), unix.O_RDONLY, 0)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err == nil {
		defer f.Close()
		var ds []egress.Decision
		if ds, err = egress.ReadLog(f, limit); err == nil {
			return ds, nil
		}
	}
	return nil, policy.Errorf(policy.CodeInternal, "runtime.egress", "the log cannot be read").Because(err)
}

// lostProxy tells whether a Worker's proxy ended before the Worker.
func (r *Runtime) lostProxy(id policy.WorkerID) (bool, error) {
	lost, err := r.root.Exists(helper.EgressFile(id, helper.EgressLost))
	if err != nil {
		err = policy.Errorf(policy.CodeInternal, "runtime.egress", "whether the proxy has ended cannot be seen").Because(err)
	}
	return lost, err
}

// usedNetwork is the end of a Worker's network: what it came to, and a warning if
// anything was refused, or if the way out was lost. Both are nil without an allowlist,
// which costs one look.
func (r *Runtime) usedNetwork(ctx context.Context, id policy.WorkerID) (u *policy.NetworkUsage, warnings []policy.Diagnostic) {
	if there, err := r.root.Exists(helper.EgressFile(id, helper.EgressCounters)); err == nil && !there {
		return nil, nil
	}
	lost, err := r.lostProxy(id)
	if lost {
		warnings = append(warnings, *policy.Warnf(policy.CodeEgressLost, "runtime.egress", "the egress proxy of the worker %s ended before it", id))
	}
	used, uerr := r.endedNetwork(ctx, id)
	if err = errors.Join(err, uerr); err != nil {
		r.log.Warn("what a worker's network came to is not known", "worker", id, "error", err)
		return nil, warnings
	}
	if used.Refused == 0 {
		return &used, warnings
	}
	ds, err := r.decisions(id, 0)
	if err != nil {
		r.log.Warn("a worker's decisions cannot be read", "worker", id, "error", err)
	}
	return &used, append(warnings, *refusedWarning(used.Refused, ds))
}

func (r *Runtime) endedNetwork(ctx context.Context, id policy.WorkerID) (u policy.NetworkUsage, err error) {
	w, err := r.registry.GetWorker(ctx, id)
	if err != nil {
		return u, err
	}
	a, err := r.registry.GetAllocation(ctx, w.AllocationID)
	if err != nil {
		return u, err
	}
	p, err := networkOf(a, w)
	if err != nil {
		return u, err
	}
	return r.networkUsage(id, p)
}

// refusedShown is how many destinations a warning names.
const refusedShown = 5

func refusedWarning(n uint64, ds []egress.Decision) *policy.Diagnostic {
	var names []string
	seen := make(map[string]bool)
	for _, d := range ds {
		if !d.Reason.Refusal() {
			continue
		}
		s := string(d.Reason)
		if d.Host != "" {
			s = fmt.Sprintf("%s:%d (%s)", policy.Printable(d.Host), d.Port, d.Reason)
		}
		if !seen[s] {
			seen[s] = true
			names = append(names, s)
		}
	}
	if more := len(names) - refusedShown; more > 0 {
		names = append(names[:refusedShown], fmt.Sprintf("and %d others", more))
	}
	times := "once"
	if n > 1 {
		times = fmt.Sprintf("%d times", n)
	}
	return policy.Warnf(policy.CodeEgressRefused, "runtime.egress", "the network policy refused %s: %s", times, strings.Join(names, ", "))
}
