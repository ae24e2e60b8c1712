"""The same run by other people's software: configs, launchers, engines, hosts. Lesson 13."""
