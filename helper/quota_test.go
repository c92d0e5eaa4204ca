package helper

import (
	"errors"
	"testing"

	"yoi.dev/yoi-runtime/policy"
)

func TestPlanQuota(t *testing.T) {
	by := func(s ...policy.StrategyName) (out []RepositoryTree) {
		for _, n := range s {
			out = append(out, RepositoryTree{Strategy: n})
		}
		return out
	}
	const btrfs, project, measured = policy.QuotaBtrfs, policy.QuotaProject, policy.QuotaMeasured
	cached := []RepositoryTree{{Strategy: policy.StrategyOverlay, Caches: []policy.DependencyCache{{Path: "x"}}}}
	for name, c := range map[string]struct {
		quota         policy.Quota
		by            policy.QuotaEnforcement
		trees         []RepositoryTree
		build, shared bool
		bytes, inodes policy.QuotaEnforcement
		refused       bool // if it is hard
	}{
		"none":                {policy.Quota{}, btrfs, by("overlay"), false, false, "", "", false},
		"nothing enforces":    {policy.Quota{Bytes: 1, Inodes: 1}, "", by("overlay"), false, false, measured, measured, true},
		"btrfs":               {policy.Quota{Bytes: 1}, btrfs, by("overlay"), false, false, btrfs, "", false},
		"btrfs, inodes":       {policy.Quota{Bytes: 1, Inodes: 1}, btrfs, by("copy"), false, false, btrfs, measured, true},
		"btrfs, only inodes":  {policy.Quota{Inodes: 1}, btrfs, by("copy"), false, false, "", measured, true},
		"btrfs, a snapshot":   {policy.Quota{Bytes: 1}, btrfs, by("overlay", "btrfs_snapshot"), false, false, measured, "", true},
		"btrfs, caches":       {policy.Quota{Bytes: 1}, btrfs, cached, true, false, btrfs, "", false},
		"project":             {policy.Quota{Bytes: 1, Inodes: 1}, project, by("overlay"), false, true, project, project, false},
		"project, inodes":     {policy.Quota{Inodes: 1}, project, by("git_worktree"), false, true, "", project, false},
		"project, copies":     {policy.Quota{Bytes: 1}, project, by("copy", "git_sparse"), false, true, project, "", false},
		"project, reflinks":   {policy.Quota{Bytes: 1}, project, by("overlay", "reflink"), false, true, measured, "", true},
		"project, external":   {policy.Quota{Bytes: 1}, project, by("external"), false, true, measured, "", true},
		"ext4 has no reflink": {policy.Quota{Bytes: 1}, project, by("external"), false, false, project, "", false},
		"project, caches":     {policy.Quota{Bytes: 1}, project, cached, false, false, measured, "", true},
		"project, build":      {policy.Quota{Inodes: 1}, project, by("overlay"), true, false, "", measured, true},
	} {
		ev, err := planQuota(c.quota, c.by, c.trees, c.build, c.shared)
		if err != nil || ev.Bytes != c.bytes || ev.Inodes != c.inodes {
			t.Errorf("%s: %+v, %v", name, ev, err)
		}
		c.quota.Hard = true
		if _, err := planQuota(c.quota, c.by, c.trees, c.build, c.shared); errors.Is(err, policy.CodeQuotaUnsupported) != c.refused || (err != nil) != c.refused {
			t.Errorf("%s, hard: %v", name, err)
		}
	}
}
