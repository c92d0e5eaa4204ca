package gitcache

import (
	"context"
	"fmt"
	"os"

	"yoi.dev/yoi-runtime/policy"
)

// Some tests need the cache to be used by other processes, which they can kill.
const envChild = "YOI_GITCACHE_CHILD"

// childMain does one operation on a root: the environment says which.
func childMain() {
	c, err := Open(Options{Root: os.Getenv("CHILD_ROOT")})
	if err == nil {
		err = childDo(c)
	}
	if err != nil {
		fmt.Println(err)
		os.Exit(1)
	}
}

func childDo(c *Cache) error {
	ctx := context.Background()
	src, err := ParseSource(os.Getenv("CHILD_SOURCE"), "/")
	if err != nil {
		return err
	}
	if os.Getenv(envChild) == "fetch" {
		rep, err := c.Fetch(ctx, src)
		fmt.Printf("shared=%v created=%v\n", rep.Shared, rep.Created)
		return err
	}
	p, _, err := c.Resolve(ctx, src, policy.Selector{}, ResolveOptions{})
	if err != nil || os.Getenv(envChild) == "resolve" {
		return err
	}
	tree, _, err := c.Pristine(ctx, p)
	if err != nil {
		return err
	}
	fmt.Printf("%s spawns=%d\n", tree.Key, c.spawns.Load())
	return tree.Close()
}
