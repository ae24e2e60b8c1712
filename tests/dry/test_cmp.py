from tests.dry.parts import *
from tests.train.test_layouts import LAYOUTS, MORE
import pytest
def test_all(pool,tmp_path):
    every={n:["--tp","2",*a] for n,a in (LAYOUTS|MORE).items()}
    for n in list(every):
        if "--rows" in every[n]: pass
    real=pool.run(4,measured,every,str(tmp_path),timeout=400)[0]
    for name,reports in real.items():
        for r in (0,3):
            d=shapes(every[name],4,r); w=reports[r]
            for k in ("held","held_by_tier","held_by_kind","sent","sent_by_axis","sent_beside"):
                if getattr(d,k)!=w[k]: print("DIFF",name,r,k,getattr(d,k),w[k])
            v=[x._asdict() for x in d.verbs]
            if v!=w["verbs"]:
                print("VERBS",name,r); [print("   ",a,b) for a,b in zip(v,w["verbs"]) if a!=b]; print(len(v),len(w["verbs"]))
            print(name,r,"peak",d.peak/w["peak"],d.peak,w["peak"], "host",d.host_peak,w["host_peak"])
