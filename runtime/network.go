package runtime

import (
	"yoi.dev/yoi-runtime/egress"
	"yoi.dev/yoi-runtime/policy"
)

// networkEnvironment has a Worker's programs use the way out that it has.
func networkEnvironment(p policy.NetworkPolicy) map[string]string {
	if p.Mode != policy.NetworkAllowlist {
		return nil
	}
	return egress.Environment()
}

// mayReach refuses to callers of the API what only the operator may open: addresses
// that are not public, where the host and its neighbours are.
func (r *Runtime) mayReach(p policy.NetworkPolicy) error {
	rules, err := p.ParsedRules()
	if err != nil {
		return err
	}
	for _, rule := range rules {
		if rule.Special() && !r.config.Network.AllowSpecial {
			return policy.Errorf(policy.CodePolicyInvalid, "runtime.create", "the network rule %s reaches beyond public addresses, which is not allowed in this Runtime", rule).
				WithHint("Set network.allow_special in config.toml.")
		}
	}
	return nil
}
