package runtime

import (
	"context"
	"strconv"

	"yoi.dev/yoi-runtime/helper"
	"yoi.dev/yoi-runtime/ledger/registry"
	"yoi.dev/yoi-runtime/policy"
)

// cachesFor are the dependency caches of a repository: the request's, or where it
// names none, the repository's own.
func cachesFor(rec registry.Repository, asked []policy.DependencyCache) ([]policy.DependencyCache, error) {
	if len(asked) == 0 {
		o, err := optionsOf(rec)
		return o.Cache, err
	}
	return asked, policy.ValidateCaches(asked)
}

// checkShared refuses what a direct mount has no place for.
func (c *creation) checkShared() error {
	if c.strategy != policy.StrategyDirect {
		return nil
	}
	if c.sandbox.Quota == c.r.config().quota() {
		c.sandbox.Quota = policy.Quota{} // nobody asked for it
	}
	shared := c.sandbox.BuildCache || c.sandbox.PublishCaches || c.sandbox.Quota != (policy.Quota{})
	for i := range c.repos {
		shared = shared || len(c.repos[i].caches) > 0
	}
	if shared {
		return policy.Errorf(policy.CodePolicyInvalid, "runtime.create", "direct_legacy_mount has neither caches nor a quota")
	}
	return nil
}

// cacheEnvironment tells the tools that follow the XDG Base Directory
// Specification, the Go toolchain and pip among them, where the build cache is.
func cacheEnvironment(p policy.SandboxPolicy) map[string]string {
	if !p.BuildCache {
		return nil
	}
	return map[string]string{"XDG_CACHE_HOME": "/cache", "YOI_CACHE": "/cache"}
}

// publish makes shared caches of what a Worker that succeeded left, if the policy
// trusts it with that. That it fails is no failure of the Worker's.
func (r *Runtime) publish(ctx context.Context, a registry.Allocation) []policy.Diagnostic {
	if !a.SandboxPolicy.PublishCaches || a.MaterializerKind == policy.StrategyDirect {
		return nil
	}
	res, err := r.helper.Publish(ctx, helper.PublishRequest{
		AllocationID: a.ID, Repositories: treesOf(a),
		DependencyBytes: r.config().Cache.DependencyMaxBytes, BuildBytes: r.config().Cache.BuildMaxBytes,
	})
	var out []policy.Diagnostic
	if err != nil {
		out = append(out, *policy.AsDiagnostic(err))
	}
	for _, c := range res.Caches {
		fields := map[string]string{"path": c.Path, "digest": c.Digest, "bytes": strconv.FormatInt(c.Bytes, 10)}
		kind := policy.EventCachePublished
		if !c.Published {
			kind, fields["reason"] = policy.EventCacheNotPublished, c.Reason
		}
		r.workspaceEvent(kind, a, fields)
	}
	return out
}
