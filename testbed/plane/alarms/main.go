// Command alarms says which alarms of a PrometheusRule fire, by Prometheus's own parser and engine.
//
//	alarms alarms.yaml < scrapes.json
//	alarms queries < queries.json
//
// The scrapes are a list of {"at": seconds, "instance": name, "text": metrics}. Each alarm is evaluated every 30 seconds from
// the first scrape to the last; the names of those that fire at the end go to standard output, one a line. A file that
// Prometheus would not load is an error. The second form reads a list of queries and says of each what it reads and which
// labels its result has.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/prometheus/common/model"
	"github.com/prometheus/common/promslog"
	"github.com/prometheus/prometheus/model/labels"
	"github.com/prometheus/prometheus/model/rulefmt"
	"github.com/prometheus/prometheus/model/textparse"
	"github.com/prometheus/prometheus/promql"
	"github.com/prometheus/prometheus/promql/parser"
	"github.com/prometheus/prometheus/tsdb"
	"sigs.k8s.io/yaml"
)

const step = 30 * time.Second

type scrape struct {
	At       int64  `json:"at"`
	Instance string `json:"instance"`
	Text     string `json:"text"`
}

func main() {
	command := run
	if os.Args[1] == "queries" {
		command = func(_ string, in io.Reader) error { return describe(in) }
	}
	if err := command(os.Args[1], os.Stdin); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func run(path string, in io.Reader) error {
	groups, err := load(path)
	if err != nil {
		return err
	}
	var scrapes []scrape
	if err := json.NewDecoder(in).Decode(&scrapes); err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "alarms")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	db, err := tsdb.Open(dir, nil, nil, tsdb.DefaultOptions(), nil)
	if err != nil {
		return err
	}
	defer db.Close()
	for _, s := range scrapes {
		if err := store(db, s); err != nil {
			return fmt.Errorf("scrape of %s at %d: %w", s.Instance, s.At, err)
		}
	}
	engine := promql.NewEngine(promql.EngineOpts{
		MaxSamples: 1_000_000, Timeout: time.Minute,
		Parser: parser.NewParser(parser.Options{}),
	})
	first, last := time.Unix(scrapes[0].At, 0), time.Unix(scrapes[len(scrapes)-1].At, 0)
	for _, group := range groups.Groups {
		for _, rule := range group.Rules {
			fires, err := evaluate(engine, db, rule, first, last)
			if err != nil {
				return fmt.Errorf("%s: %w", rule.Alert, err)
			}
			if fires {
				fmt.Println(rule.Alert)
			}
		}
	}
	return nil
}

// load reads the groups of a PrometheusRule as Prometheus would.
func load(path string) (*rulefmt.RuleGroups, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	var object struct {
		Spec json.RawMessage `json:"spec"`
	}
	if err := yaml.Unmarshal(text, &object); err != nil {
		return nil, err
	}
	spec, err := yaml.JSONToYAML(object.Spec)
	if err != nil {
		return nil, err
	}
	groups, errs := rulefmt.Parse(spec, false, model.UTF8Validation, parser.NewParser(parser.Options{}), promslog.NewNopLogger())
	return groups, errors.Join(errs...)
}

func store(db *tsdb.DB, s scrape) error {
	appender := db.Appender(context.Background())
	parsed, err := textparse.New([]byte(s.Text), "application/openmetrics-text", nil, textparse.ParserOptions{})
	if err != nil {
		return err
	}
	for {
		entry, err := parsed.Next()
		if errors.Is(err, io.EOF) {
			return appender.Commit()
		}
		if err != nil {
			return err
		}
		if entry != textparse.EntrySeries {
			continue
		}
		_, _, value := parsed.Series()
		var own labels.Labels
		parsed.Labels(&own)
		all := labels.NewBuilder(own)
		all.Set("instance", s.Instance)
		all.Set("job", "operating")
		if _, err := appender.Append(0, all.Labels(), s.At*1000, value); err != nil {
			return err
		}
	}
}

// evaluate says whether the alarm fires at the end: its expression has had the same labels in the result for as long as `for`.
func evaluate(engine *promql.Engine, db *tsdb.DB, rule rulefmt.Rule, first, last time.Time) (bool, error) {
	since := map[string]time.Time{}
	for now := first; !now.After(last); now = now.Add(step) {
		query, err := engine.NewInstantQuery(context.Background(), db, nil, rule.Expr, now)
		if err != nil {
			return false, err
		}
		result := query.Exec(context.Background())
		if result.Err != nil {
			return false, result.Err
		}
		vector, err := result.Vector()
		if err != nil {
			return false, err
		}
		active := map[string]time.Time{}
		for _, sample := range vector {
			var key bytes.Buffer
			fmt.Fprint(&key, sample.Metric)
			begin, known := since[key.String()]
			if !known {
				begin = now
			}
			active[key.String()] = begin
		}
		since = active
		query.Close()
	}
	for _, begin := range since {
		if last.Sub(begin) >= time.Duration(rule.For) {
			return true, nil
		}
	}
	return false, nil
}
