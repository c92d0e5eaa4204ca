package main

import (
	"fmt"

	"github.com/spf13/cobra"

	"yoi.dev/yoi-runtime/policy"
	"yoi.dev/yoi-runtime/runtime"
)

func (a *app) repoRefs() *cobra.Command {
	var req runtime.RefsRequest
	c := &cobra.Command{
		Use: "refs ID [PART]", Short: "List a repository's branches and tags, or those whose names hold PART", Example: "  yoi repo refs app\n  yoi repo refs app fix/",
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			if len(argv) > 1 {
				req.Part = argv[1]
			}
			return a.with(cmd.Context(), func(s runtime.Service) error {
				list, err := s.ListRefs(cmd.Context(), policy.RepositoryID(argv[0]), req)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(list)
				}
				rows := make([][]string, 0, len(list.Items))
				for _, r := range list.Items {
					rows = append(rows, []string{policy.Printable(r.Name), r.CommitID})
				}
				if err := a.table([]string{"REF", "COMMIT"}, rows); err != nil {
					return err
				}
				if list.More {
					fmt.Fprintln(a.stderr, "yoi: there are more; name a part, or raise --limit")
				}
				return nil
			})
		},
	}
	c.Flags().IntVar(&req.Limit, "limit", 100, "at most `N` of them, up to 1000")
	return c
}

func (a *app) wsDirectories() *cobra.Command {
	var repo string
	c := &cobra.Command{
		Use: "dirs ID [PATH]", Short: "List the directories of a workspace, for --cwd", Example: "  yoi ws dirs ws-0123456789abcdef\n  yoi ws dirs ws-0123456789abcdef src",
		Args: args(cobra.RangeArgs(1, 2)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			req := runtime.DirectoriesRequest{RepositoryID: policy.RepositoryID(repo)}
			if len(argv) > 1 {
				req.Path = argv[1]
			}
			return a.with(cmd.Context(), func(s runtime.Service) error {
				list, err := s.ListDirectories(cmd.Context(), policy.AllocationID(argv[0]), req)
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(list)
				}
				for _, name := range list.Names {
					fmt.Fprintln(a.stdout, name)
				}
				if list.More {
					fmt.Fprintln(a.stderr, "yoi: there are more")
				}
				return nil
			})
		},
	}
	c.Flags().StringVar(&repo, "repo", "", "of this repository `ID` (default: the workspace's first)")
	return c
}

func (a *app) workerUsage() *cobra.Command {
	return &cobra.Command{
		Use: "usage ID", Short: "Say what a running Worker uses of CPU and memory", Example: "  yoi worker usage wk-0123456789abcdef",
		Args: args(cobra.ExactArgs(1)),
		RunE: func(cmd *cobra.Command, argv []string) error {
			return a.with(cmd.Context(), func(s runtime.Service) error {
				u, err := s.WorkerUsage(cmd.Context(), policy.WorkerID(argv[0]))
				if err != nil {
					return err
				}
				if a.json {
					return a.printJSON(u)
				}
				return a.pairs("cpu", u.CPUTime.String(), "memory", size(u.MemoryBytes), "processes", fmt.Sprint(u.Processes), "tasks", fmt.Sprint(u.Tasks))
			})
		},
	}
}
