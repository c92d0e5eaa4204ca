package main

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (a *app) wsCommand() *cobra.Command {
	return groupCommand("ws", "Create, inspect and remove Execution Workspaces", "  yoi ws create app --rev branch:main\n  yoi ws list\n  yoi ws rm ws-…",
		append([]*cobra.Command{a.wsCreate(), a.wsList(), a.wsShow(), a.wsEvidence(), a.wsRemove()}, append(a.resultCommands(), a.forkCommands()...)...)...)
}

type createFlags struct {
	workspace, rev, branch, strategy, dirty, patch, cleanup, network, seccomp, key, policy, ids string
	allow                                                                                       []string
	transparent                                                                                 bool
	scope, env, require                                                                         []string
	shared                                                                                      sharedFlags
	root                                                                                        rootFlags
	authority                                                                                   authorityFlags
}

func (a *app) wsCreate() *cobra.Command {
	var f createFlags
	c := &cobra.Command{
		Use: "create REPOSITORY [REPOSITORY...]", Short: "Make an Execution Workspace of registered repositories",
		Long: `Make an Execution Workspace. Each REPOSITORY is a registered id, and may carry a
selector of its own as ID@REVISION; --rev is for those without.`,
		Example: "  yoi ws create app --rev v1.2 --cleanup keep_for:2h\n  yoi ws create app@branch:main lib@tag:v3",
		Args:    args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			req, err := a.createRequest(f, argv)
			if err != nil {
				return err
			}
			return a.withRecovered(cmd.Context(), func(s runtime.Service) error {
				if err := f.addPatch(cmd.Context(), s, &req); err != nil {
					return err
				}
				w, err := s.CreateWorkspace(cmd.Context(), req)
				if err != nil {
					return err
				}
				return a.showWorkspace(w)
			})
		},
	}
	fl := c.Flags()
	fl.StringVar(&f.workspace, "workspace-id", "", "the project's `ID` (default \"default\")")
	fl.StringVar(&f.rev, "rev", "HEAD", "the commit: a `REVISION`, or branch:NAME, tag:NAME, commit:ID, ref:refs/…")
	fl.StringArrayVar(&f.scope, "scope", nil, "only this `DIRECTORY` (repeatable)")
	fl.StringVar(&f.branch, "branch", "", "make HEAD a new branch `NAME` (default: detached)")
	fl.StringVar(&f.strategy, "strategy", "", "how to make the tree: `NAME` (default auto; see yoi doctor)")
	fl.StringVar(&f.dirty, "dirty", "", "what becomes of uncommitted changes: `POLICY` clean_point_only (default: refused), patch_artifact (with --patch), current_worktree_snapshot or direct_legacy_mount")
	fl.StringVar(&f.patch, "patch", "", "apply a git diff to the first REPOSITORY: a `FILE`, - for stdin, or a stored patch's sha256:… (implies --dirty patch_artifact)")
	fl.StringVar(&f.cleanup, "cleanup", "", "`POLICY` remove_on_stop, keep_on_failure, keep_for:DURATION, each at its first Worker's end, or keep_until_asked (default)")
	fl.StringArrayVar(&f.env, "env", nil, "set `K=V` for its Workers (repeatable)")
	networkFlags(fl, &f.network, &f.allow, &f.transparent)
	fl.StringVar(&f.seccomp, "seccomp", "", "system-call `PROFILE` default, strict, debug, nested or audit")
	fl.StringVar(&f.policy, "policy", "", "a sandbox policy's `FILE`, TOML or JSON; other flags go first (see yoi policy)")
	fl.StringArrayVar(&f.require, "require", nil, "start no Worker without this `PROTECTION`: landlock, limits or id_range (repeatable)")
	fl.StringVar(&f.ids, "ids", "", "as an ordinary user: `range` gives the sandbox the user's subordinate ids too (default: the user's own id alone)")
	f.shared.register(c)
	f.root.add(fl)
	f.authority.register(c, false)
	fl.StringVar(&f.key, "idempotency-key", "", "a repeated request with this `KEY` returns the first one's workspace")
	return c
}

func (a *app) createRequest(f createFlags, argv []string) (req runtime.CreateWorkspaceRequest, err error) {
	req = runtime.CreateWorkspaceRequest{
		WorkspaceID: policy.WorkspaceID(f.workspace), Strategy: policy.StrategyName(f.strategy),
		DirtyState: policy.DirtyStatePolicy(f.dirty), IdempotencyKey: f.key,
		Sandbox: policy.SandboxPolicy{Network: networkOf(f.network, f.allow, f.transparent), Seccomp: policy.SeccompProfile(f.seccomp), Require: protections(f.require), IDs: policy.IDs(f.ids)},
	}
	if f.cleanup != "" {
		if req.Cleanup, err = policy.ParseCleanupPolicy(f.cleanup); err != nil {
			return req, err
		}
	}
	if req.Sandbox.Root, err = f.root.profile(); err != nil {
		return req, err
	}
	if req.Sandbox.Env, err = parseEnv(f.env); err != nil {
		return req, err
	}
	caches, err := f.shared.apply(&req.Sandbox)
	if err != nil {
		return req, err
	}
	own, err := f.authority.apply(&req.Sandbox)
	if err != nil {
		return req, err
	}
	if len(own) > 0 {
		return req, usageError{errors.New("--secret with a source of the caller's goes with yoi run: a workspace's Workers are given the operator's, by handle")}
	}
	if req.Sandbox, err = a.underPolicy(f.policy, req.Sandbox); err != nil {
		return req, err
	}
	for _, s := range argv {
		id, rev, ok := strings.Cut(s, "@")
		if !ok {
			rev = f.rev
		}
		sel, err := parseRev(rev)
		if err != nil {
			return req, err
		}
		req.Repositories = append(req.Repositories, runtime.RepositoryRequest{RepositoryID: policy.RepositoryID(id), Selector: sel, Scope: f.scope, Branch: f.branch, Caches: caches})
	}
	return req, nil
}

func (a *app) wsList() *cobra.Command {
	var f runtime.ListFilter
	var workspace, repo string
	var all, disk bool
	c := &cobra.Command{
		Use: "list", Short: "List Execution Workspaces that exist, newest first", Example: "  yoi ws list --status active\n  yoi ws list --all\n  yoi ws list --disk", Aliases: []string{"ls"},
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			f.WorkspaceID, f.RepositoryID = policy.WorkspaceID(workspace), policy.RepositoryID(repo)
			return a.withRecovered(cmd.Context(), func(s runtime.Service) error {
				list := s.ListWorkspaces
				if !all && f.Status == "" {
					list = func(ctx context.Context, f runtime.ListFilter) (runtime.WorkspaceList, error) {
						return existing(ctx, s, f)
					}
				}
				page, err := list(cmd.Context(), f)
				if err != nil {
					return err
				}
				if disk {
					return a.listMeasured(cmd.Context(), s, page)
				}
				if a.json {
					return a.printJSON(page)
				}
				rows := make([][]string, 0, len(page.Items))
				for _, w := range page.Items {
					repo, commit, subject := pointOf(w)
					rows = append(rows, []string{string(w.ID), string(w.Status), repo, commit, string(w.Strategy), ago(w.CreatedAt), subject})
				}
				if err := a.table([]string{"ID", "STATUS", "REPOSITORY", "COMMIT", "STRATEGY", "CREATED", "SUBJECT"}, rows); err != nil {
					return err
				}
				return a.more(page.Next)
			})
		},
	}
	fl := c.Flags()
	fl.StringVar(&workspace, "workspace-id", "", "only of this project `ID`")
	fl.StringVar(&repo, "repo", "", "only with this repository `ID`")
	fl.BoolVar(&all, "all", false, "those that were removed, too")
	fl.BoolVar(&disk, "disk", false, "measure what each occupies (looks at every file)")
	a.pageFlags(c, &f)
	return c
}

// existing pages through a listing and leaves out what was removed: each
// `yoi run` is in the history, and would hide what stands.
func existing(ctx context.Context, s runtime.Service, f runtime.ListFilter) (out runtime.WorkspaceList, err error) {
	limit := f.Limit
	if limit == 0 {
		limit = 100
	}
	out.Items = []runtime.Workspace{}
	for {
		page, err := s.ListWorkspaces(ctx, f)
		if err != nil {
			return out, err
		}
		for _, w := range page.Items {
			if w.Status != runtime.WorkspaceRemoved {
				out.Items = append(out.Items, w)
			}
		}
		if out.Next = page.Next; out.Next == "" || len(out.Items) >= limit {
			return out, nil
		}
		// Never more than is missing: Next belongs to the end of a whole page.
		f.After, f.Limit = page.Next, limit-len(out.Items)
	}
}

// pageFlags are the flags of every paged listing.
func (a *app) pageFlags(c *cobra.Command, f *runtime.ListFilter) {
	fl := c.Flags()
	fl.StringVar(&f.Status, "status", "", "only in this `STATUS`")
	fl.IntVar(&f.Limit, "limit", 0, "at most `N` (default 100)")
	fl.StringVar(&f.After, "after", "", "go on after the `TOKEN` that the page before printed")
}

func (a *app) more(next string) error {
	if next != "" {
		fmt.Fprintf(a.stderr, "more: --after %s\n", policy.Printable(next))
	}
	return nil
}

func pointOf(w runtime.Workspace) (repo, commit, subject string) {
	if len(w.Points) == 0 {
		return "", "", ""
	}
	p := w.Points[0]
	repo = string(p.RepositoryID)
	if n := len(w.Points) - 1; n > 0 {
		repo += fmt.Sprintf(" +%d", n)
	}
	return repo, short(p.CommitID), p.Subject
}

func (a *app) showWorkspace(w runtime.Workspace) error {
	if a.json {
		return a.printJSON(w)
	}
	kv := []string{
		"id", string(w.ID), "status", string(w.Status), "project", string(w.WorkspaceID), "worker", string(w.WorkerID),
		"strategy", string(w.Strategy), "reason", w.StrategyReason, "dirty state", string(w.DirtyState),
		"cleanup", string(w.Cleanup.Mode), "policy", w.SandboxDigest, "ancestor", string(w.Ancestor),
		"created", ago(w.CreatedAt), "stopped", ago(w.StoppedAt), "removed", ago(w.RemovedAt),
	}
	for i, p := range w.Points {
		text := fmt.Sprintf("%s at %s (%s)", p.RepositoryID, short(p.CommitID), p.Selector)
		if i < len(w.Roots) {
			text += " in " + w.Roots[i]
		}
		kv = append(kv, "repository", text)
	}
	if err := a.pairs(kv...); err != nil {
		return err
	}
	a.printWarnings(w.Diagnostics)
	return nil
}

func (a *app) wsShow() *cobra.Command {
	var disk bool
	c := &cobra.Command{
		Use: "show ID", Short: "Show one Execution Workspace", Example: "  yoi ws show ws-0123456789abcdef\n  yoi ws show --disk ws-0123456789abcdef",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				w, err := s.GetWorkspace(cmd.Context(), policy.AllocationID(argv[0]))
				if err != nil {
					return err
				}
				if disk {
					return a.showMeasured(cmd.Context(), s, w)
				}
				return a.showWorkspace(w)
			})
		},
	}
	c.Flags().BoolVar(&disk, "disk", false, "measure what it occupies (looks at every file)")
	return c
}

func (a *app) wsEvidence() *cobra.Command {
	return &cobra.Command{
		Use: "evidence ID", Short: "Print the proof of what its Workers ran on (always JSON)", Example: "  yoi ws evidence ws-0123456789abcdef > evidence.json",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				ev, err := s.WorkspaceEvidence(cmd.Context(), policy.AllocationID(argv[0]))
				if err != nil {
					return err
				}
				return a.printJSON(ev)
			})
		},
	}
}

func (a *app) wsRemove() *cobra.Command {
	var req runtime.RemoveWorkspaceRequest
	c := &cobra.Command{
		Use: "rm ID [ID...]", Short: "Remove Execution Workspaces", Aliases: []string{"remove", "cleanup"},
		Long: `Remove Execution Workspaces. One that a Worker runs on is refused unless --stop
is given; one that holds commits or changes that nobody has collected is refused
unless --discard is given.`,
		Example: "  yoi ws rm ws-0123456789abcdef\n  yoi ws rm --discard --stop ws-0123456789abcdef",
		Args:    args(cobra.MinimumNArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.withRecovered(cmd.Context(), func(s runtime.Service) error {
				for _, id := range argv {
					w, err := s.RemoveWorkspace(cmd.Context(), policy.AllocationID(id), req)
					if err != nil {
						return err
					}
					if a.json {
						if err := a.printJSON(w); err != nil {
							return err
						}
						continue
					}
					fmt.Fprintf(a.stdout, "%s %s\n", w.ID, w.Status)
				}
				return nil
			})
		},
	}
	c.Flags().BoolVar(&req.Discard, "discard", false, "throw uncollected commits and changes away")
	c.Flags().BoolVar(&req.Stop, "stop", false, "stop its Worker first")
	return c
}
