"""The same run in other projects' software: configs, launchers, engines, hosts. Lesson 13."""
