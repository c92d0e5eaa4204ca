package badinput

import (
	"testing"

	"yoi.dev/yoi-runtime/internal/testenv"
	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/tests/internal/rig"
)

func TestSelectors(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSmall(t)
	repo.Git(t, "branch", "both", "HEAD~1")
	repo.Git(t, "tag", "both", "HEAD")
	repo.Git(t, "tag", "of-a-blob", "HEAD:README.md")
	repo.Git(t, "tag", "of-a-tree", "HEAD^{tree}")
	blob := repo.Git(t, "rev-parse", "HEAD:README.md")
	y := warmed(t, rig.NewPlace(t, "disk", 0), repo.Dir)
	for _, c := range []struct {
		rev  string
		code policy.Code
	}{
		{"both", policy.CodeSelectorAmbiguous},
		{"no-such-branch", policy.CodeSelectorMissing},
		{"branch:v1", policy.CodeSelectorMissing},
		{"tag:main", policy.CodeSelectorMissing},
		{"commit:0123456789012345678901234567890123456789", policy.CodeSelectorMissing},
		{"HEAD~99", policy.CodeSelectorMissing},
		{"of-a-blob", policy.CodeSelectorNotCommit},
		{"of-a-tree", policy.CodeSelectorNotCommit},
		{blob, policy.CodeSelectorNotCommit},
		{"commit:" + blob[:12], policy.CodeSelectorNotCommit},
		{"HEAD^{tree}", policy.CodeSelectorNotCommit},
		{"HEAD:README.md", policy.CodeSelectorInvalid},
		{"-x", policy.CodeSelectorInvalid},
		{"--output=/tmp/x", policy.CodeSelectorInvalid},
		{"branch:--upload-pack=id", policy.CodeSelectorInvalid},
		{"main..topic", policy.CodeSelectorInvalid},
		{"main topic", policy.CodeSelectorInvalid},
		{"ref:main", policy.CodeSelectorInvalid},
		{"branch:", policy.CodeSelectorInvalid},
		{"a\nb", policy.CodeSelectorInvalid},
	} {
		t.Run(c.rev, func(t *testing.T) {
			refused(t, y, 125, c.code, "run", "--repo", repo.Dir, "--rev="+c.rev, "--", "true")
		})
	}
}

func TestScopes(t *testing.T) {
	testenv.Root(t)
	repo := testenv.RepoSmall(t)
	y := warmed(t, rig.NewPlace(t, "disk", 0), repo.Dir)
	for scope, code := range map[string]policy.Code{
		"no/such/dir": policy.CodeScopeEmpty,
		"../src":      policy.CodeScopeInvalid,
		"/src":        policy.CodeScopeInvalid,
		".git":        policy.CodeScopeInvalid,
		"-src":        policy.CodeScopeInvalid,
		"a/../src":    policy.CodeScopeInvalid,
	} {
		t.Run(scope, func(t *testing.T) {
			refused(t, y, 125, code, "run", "--repo", repo.Dir, "--scope="+scope, "--", "true")
		})
	}
}
