package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (a *app) repoCommand() *cobra.Command {
	return groupCommand("repo", "Register, fetch and resolve repositories", "  yoi repo add ~/src/app\n  yoi repo resolve app --rev v1.2",
		a.repoAdd(), a.repoList(), a.repoFetch(), a.repoRefs(), a.repoResolve(), a.repoRemove(),
		a.repoCollected(), a.repoExport(), a.repoDrop())
}

func (a *app) repoAdd() *cobra.Command {
	var id, filter string
	var caches []string
	var artifacts policy.ArtifactPolicy
	c := &cobra.Command{
		Use: "add SOURCE", Short: "Register a repository: a path or a file, ssh or https URL",
		Example: "  yoi repo add ~/src/app\n  yoi repo add --id tools https://example.org/tools.git\n  yoi repo add --filter blob:none https://example.org/huge.git\n  yoi repo add --cache node_modules=package-lock.json ~/src/web",
		Args:    args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			src, err := absoluteSource(argv[0])
			if err != nil {
				return err
			}
			cache, err := parseCaches(caches)
			if err != nil {
				return err
			}
			return a.with(cmd.Context(), func(s runtime.Service) error {
				r, err := s.AddRepository(cmd.Context(), runtime.AddRepositoryRequest{
					ID: policy.RepositoryID(id), Source: src, Options: policy.RepositoryOptions{Filter: policy.ObjectFilter(filter), Cache: cache, Artifacts: artifacts},
				})
				if err != nil {
					return err
				}
				return a.showRepositories(r, []runtime.Repository{r})
			})
		},
	}
	c.Flags().StringVar(&id, "id", "", "the repository's `ID` (default: the source's base name)")
	c.Flags().StringArrayVar(&caches, "cache", nil, "its workspaces share a directory by the digest of its key files: `PATH=KEY[,KEY...]` (repeatable)")
	c.Flags().StringVar(&filter, "filter", "", "mirror without the objects that `FILTER` leaves out: blob:none, tree:0 or blob:limit=SIZE; what a scope needs is fetched before its Worker starts")
	c.Flags().StringArrayVar(&artifacts.Exclude, "exclude", nil, "leave untracked files of this `PATTERN` out of a snapshot of the working tree; \"default\" for node_modules/, target/ and the like, \"none\" for nothing (repeatable)")
	c.Flags().StringArrayVar(&artifacts.Keep, "keep", nil, "never leave `PATTERN` out (repeatable)")
	return c
}

func (a *app) repoList() *cobra.Command {
	return &cobra.Command{
		Use: "list", Short: "List the registered repositories", Example: "  yoi repo list --json", Aliases: []string{"ls"},
		Args: args(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				list, err := s.ListRepositories(cmd.Context())
				if err != nil {
					return err
				}
				if list == nil {
					list = []runtime.Repository{}
				}
				return a.showRepositories(list, list)
			})
		},
	}
}

func (a *app) showRepositories(doc any, list []runtime.Repository) error {
	if a.json {
		return a.printJSON(doc)
	}
	rows := make([][]string, 0, len(list))
	for _, r := range list {
		fetched := ago(r.FetchedAt)
		if fetched == "" {
			fetched = "never"
		}
		rows = append(rows, []string{string(r.ID), fetched, size(r.CacheBytes), fmt.Sprint(r.Trees), r.Source})
	}
	return a.table([]string{"ID", "FETCHED", "CACHE", "TREES", "SOURCE"}, rows)
}

func (a *app) repoFetch() *cobra.Command {
	return &cobra.Command{
		Use: "fetch ID", Short: "Bring a repository's mirror up to date", Example: "  yoi repo fetch app",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				r, err := s.FetchRepository(cmd.Context(), policy.RepositoryID(argv[0]))
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(r)
				}
				a.progress.clear()
				fmt.Fprintf(a.stdout, "%s: %s\n", r.RepositoryID, count(r.Refs, "ref"))
				return nil
			})
		},
	}
}

func (a *app) repoResolve() *cobra.Command {
	var rev string
	var scope []string
	c := &cobra.Command{
		Use: "resolve ID", Short: "Say which commit a selector names now", Example: "  yoi repo resolve app --rev branch:main",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			sel, err := parseRev(rev)
			if err != nil {
				return err
			}
			return a.with(cmd.Context(), func(s runtime.Service) error {
				r, err := s.Resolve(cmd.Context(), runtime.ResolveRequest{RepositoryID: policy.RepositoryID(argv[0]), Selector: sel, Scope: scope})
				if err != nil {
					return err
				}
				a.printWarnings(r.Warnings)
				if a.json {
					return a.printJSON(r)
				}
				p := r.Point
				return a.pairs("commit", p.CommitID, "tree", p.TreeID, "selector", p.Selector.String(), "committed", ago(p.CommittedAt), "subject", p.Subject)
			})
		},
	}
	c.Flags().StringVar(&rev, "rev", "HEAD", "the commit: a `REVISION`, or branch:NAME, tag:NAME, commit:ID, ref:refs/…")
	c.Flags().StringArrayVar(&scope, "scope", nil, "only this `DIRECTORY` (repeatable)")
	return c
}

func (a *app) repoRemove() *cobra.Command {
	return &cobra.Command{
		Use: "remove ID", Short: "Forget a repository and its cache", Example: "  yoi repo remove app", Aliases: []string{"rm"},
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.withRecovered(cmd.Context(), func(s runtime.Service) error {
				if err := s.RemoveRepository(cmd.Context(), policy.RepositoryID(argv[0])); err != nil {
					return err
				}
				return a.removed(argv[0])
			})
		},
	}
}
